"""Sections of a page: each function takes results and returns a `Section` whose figures plotly draws in a browser.

Weights
    scores_section         symmetry and directionality by layer and head, against their nulls
    maps_section           every score as a layer × head map
    plane_section          models on the symmetry–directionality plane, with the published ones behind them
    rotary_section         energy against rotary frequency, and symmetry over offsets
    head_forms_section     row and column norms and spectra of single heads

Organised networks
    head_tree_section      the tree of the heads beside their reordered affinity
    head_map_section       the diffusion map of the heads
    sparsity_section       best-n-term curves and regularity, with controls
    invariance_section     the geometry before and after the softmax

Training and applications
    training_section       losses and scores over training
    pruning_section        losses by share of heads removed, and the heads of a plan
    comparison_section     two models compared
    model_map_section      the distances of several models

What all descriptions have in common: they consist of dicts, lists, strings and numbers only; backgrounds are
transparent, and text and grid lines have no colour, so that the page sets both for light and dark themes. A trace whose
points are heads has their labels ("L3H7") as `customdata`. A figure with a choice has one entry in
`layout.updatemenus`, whose buttons call `restyle`; a page may show it as a select element instead. Text from results is
escaped for plotly, which would otherwise read it as markup.
"""

from attngeo.show.page.sections.comparison import comparison_section
from attngeo.show.page.sections.head_forms import head_forms_section
from attngeo.show.page.sections.head_map import head_map_section
from attngeo.show.page.sections.head_tree import head_tree_section
from attngeo.show.page.sections.invariance import invariance_section
from attngeo.show.page.sections.maps import maps_section
from attngeo.show.page.sections.model_map import model_map_section
from attngeo.show.page.sections.plane import plane_section
from attngeo.show.page.sections.pruning import pruning_section
from attngeo.show.page.sections.rotary import rotary_section
from attngeo.show.page.sections.scores import scores_section
from attngeo.show.page.sections.sparsity import sparsity_section
from attngeo.show.page.sections.training import training_section

__all__ = [
    "comparison_section",
    "head_forms_section",
    "head_map_section",
    "head_tree_section",
    "invariance_section",
    "maps_section",
    "model_map_section",
    "plane_section",
    "pruning_section",
    "rotary_section",
    "scores_section",
    "sparsity_section",
    "training_section",
]
