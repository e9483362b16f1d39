"""Views of the scores of an atlas: points to draw, the course of a training run, published figures beside ours.

model_points, published_points   medians per model and stack, for a plane of two columns (`points`)
training_records                 the revisions of one run in order of step (`course`)
beside_published                 scores and published scores of the same models (`beside`)
"""

from attngeo.atlas.views.beside import beside_published
from attngeo.atlas.views.course import training_records
from attngeo.atlas.views.points import model_points, published_points

__all__ = ["beside_published", "model_points", "published_points", "training_records"]
