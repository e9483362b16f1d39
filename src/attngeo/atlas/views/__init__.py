"""Views of the scores of an atlas: points to draw, the records of a training run, published scores beside ours.

model_points, published_points   medians per model and stack, for a plane of two columns (`points`)
training_records                 the revisions of one run in order of step (`training_records`)
beside_published                 scores and published scores of the same models (`published`)
"""

from attngeo.atlas.views.points import model_points, published_points
from attngeo.atlas.views.published import beside_published
from attngeo.atlas.views.training_records import training_records

__all__ = ["beside_published", "model_points", "published_points", "training_records"]
