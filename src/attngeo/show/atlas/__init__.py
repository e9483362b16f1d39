"""The models of an atlas, drawn and in words.

atlas_figure     the plane of two scores, encoders and decoders apart (`figures`)
summary_report   organised networks: means over texts, with intervals and controls (`report`)
"""

from attngeo.show.atlas.figures import atlas_figure
from attngeo.show.atlas.report import summary_report

__all__ = ["atlas_figure", "summary_report"]
