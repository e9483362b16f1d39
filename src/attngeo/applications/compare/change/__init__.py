"""What changed between two models: the distance of their forms and the change of every score, per layer and head.

pair_layers, PairedLayers, LayerPair    layers paired by stack and number, heads by label
head_changes, layer_change, FormChange  ‖M_A − M_B‖/‖M_A‖ and the cosine of two forms, from products of the factors
head_cosines                            the cosines of heads that are paired in any other way
change_frame, COLUMNS                   the table of all layers and heads
"""

from attngeo.applications.compare.change.change_table import COLUMNS, change_frame, change_rows
from attngeo.applications.compare.change.form_change import FormChange, head_changes, head_cosines, layer_change
from attngeo.applications.compare.change.layer_pairs import LayerPair, PairedLayers, pair_layers

__all__ = [
    "COLUMNS",
    "FormChange",
    "LayerPair",
    "PairedLayers",
    "change_frame",
    "change_rows",
    "head_changes",
    "head_cosines",
    "layer_change",
    "pair_layers",
]
