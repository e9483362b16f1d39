"""Results as text and figures. The functions draw what they are given; results call them through `attngeo.display`.

Text
    score_report           scores of checkpoints, a verdict per stack, medians and a legend
    frequency_report       energy and strongest rotary pair of each layer
    published_report       rows of the published tables and a legend
    demo_text              an encoder and a decoder side by side
    organization_summary   an organised network: trees, closest heads, entropy, sparsity
    invariance_summary     the geometry before and after the softmax
    comparison_report      two models compared; model_map_report: several
    pruning_report         the heads that a plan removes, and the losses
    summary_report         organised networks: means over texts
    encode                 a data frame as table, json, csv, parquet, latex or markdown

Figures
    score_figure           scores by layer and head
    demo_figure            the same for an encoder and a decoder, and over training
    frequency_figure       energy of the rotary pairs of all heads against their frequency
    offset_figure          symmetry over the offset between two tokens; rotary_figure: both
    training_figure        scores of a run by step
    gradient_figure        the rank-1 terms of a backward pass
    tensor_figure          heads of a network tensor
    slices_figure          heads before and after organising
    heads_figure           diffusion map of the heads
    trees_figure           the trees of an organised network; tree_figure: a single tree
    sparsity_figure        best-n-term curves and regularity
    invariance_figure      geometry before and after the softmax
    paraproduct_figure     a paraproduct and its residual
    comparison_figure      changes by layer and head between two models, and their relation
    model_map_figure       distances of several models
    pruning_figure         loss against the share of heads removed
    atlas_figure           many models in the plane of two scores

    save_figure            write a figure to a file

In notebooks
    attention_view         a widget that shows any head of an organised network
"""

from attngeo.show.atlas import atlas_figure, summary_report
from attngeo.show.canvas import save_figure
from attngeo.show.comparison_figures import comparison_figure, model_map_figure
from attngeo.show.comparison_report import comparison_report, model_map_report
from attngeo.show.demo_report import demo_figure, demo_text
from attngeo.show.gradient_figures import gradient_figure
from attngeo.show.matrix_figures import paraproduct_figure, slices_figure, tensor_figure
from attngeo.show.organization_figures import (
    heads_figure,
    invariance_figure,
    sparsity_figure,
    tree_figure,
    trees_figure,
)
from attngeo.show.organization_text import invariance_summary, organization_summary
from attngeo.show.page.widget import attention_view
from attngeo.show.pruning import pruning_figure, pruning_report
from attngeo.show.rotary import frequency_figure, frequency_report, offset_figure, rotary_figure
from attngeo.show.score_figures import score_figure
from attngeo.show.score_report import published_report, score_report
from attngeo.show.tables import encode
from attngeo.show.training_curves import training_figure

__all__ = [
    "atlas_figure",
    "attention_view",
    "comparison_figure",
    "comparison_report",
    "demo_figure",
    "demo_text",
    "encode",
    "frequency_figure",
    "frequency_report",
    "gradient_figure",
    "heads_figure",
    "invariance_figure",
    "invariance_summary",
    "model_map_figure",
    "model_map_report",
    "offset_figure",
    "organization_summary",
    "paraproduct_figure",
    "pruning_figure",
    "pruning_report",
    "published_report",
    "rotary_figure",
    "save_figure",
    "score_figure",
    "score_report",
    "slices_figure",
    "sparsity_figure",
    "summary_report",
    "tensor_figure",
    "training_figure",
    "tree_figure",
    "trees_figure",
]
