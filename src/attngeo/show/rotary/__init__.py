"""What is shown of models that rotate queries and keys by their positions.

frequency_report    energy and strongest pair of each layer, as text
frequency_figure    energy of the rotary pairs of all heads against their frequency
offset_figure       symmetry over the offset between two tokens
rotary_figure       both, for several models
"""

from attngeo.show.rotary.figures import frequency_figure, offset_figure, rotary_figure
from attngeo.show.rotary.report import frequency_report

__all__ = ["frequency_figure", "frequency_report", "offset_figure", "rotary_figure"]
