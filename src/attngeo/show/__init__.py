"""Results as text and figures. The functions draw what they are given; results call them through `attngeo.display`.

Each module holds one kind of result: its text, its figures, described once as values of `attngeo.charts`, and its
sections of a page. `matplotlib` draws a figure on paper, `plotly` describes it for a page.

Text
    score_report           scores of checkpoints, a verdict per stack, medians and a legend
    frequency_report       energy and strongest rotary pair of each layer
    published_report       rows of the published tables and a legend
    coverage_report        what is known of model types
    demo_text              an encoder and a decoder side by side
    organization_summary   an organised network: trees, closest heads, entropy, sparsity
    tree_text              a tree at some of its levels
    invariance_summary     the geometry before and after the softmax
    comparison_report      two models compared; model_map_report: several
    pruning_report         the heads that a plan removes, and the losses
    summary_report         organised networks: means over texts
    encode                 a data frame as table, json, csv, parquet, latex or markdown

Figures
    score_figure           scores by layer and head
    demo_figure            the same for an encoder and a decoder, and over training
    frequency_figure       energy of the rotary pairs of all heads against their frequency
    rotary_figure          the same, and symmetry over the offset between two tokens
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

Sections of a page, in its order
    scores_section         symmetry and directionality by layer and head, against their nulls
    maps_section           every score as a layer × head map
    plane_section          models in the plane of symmetry and directionality, with the published ones behind them
    rotary_section         energy against rotary frequency, and symmetry over offsets
    head_forms_section     row and column norms and spectra of single heads
    attention_section      the attention of any head, rebuilt by the browser
    head_tree_section      the tree of the heads beside their affinity
    head_map_section       the diffusion map of the heads
    sparsity_section       best-n-term curves and regularity, with controls
    invariance_section     the geometry before and after the softmax
    training_section       losses and scores over training
    pruning_section        losses by share of heads removed, and the heads of a plan
    comparison_section     two models compared
    model_map_section      the distances of several models

In notebooks
    attention_view         a widget that shows any head of an organised network
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The module that defines each name, imported on first use: whoever prints scores loads nothing of the other results.
_HOME = {
    "atlas": ("atlas_figure", "plane_section", "summary_report"),
    "comparison": (
        "comparison_figure",
        "comparison_report",
        "comparison_section",
        "model_map_figure",
        "model_map_report",
        "model_map_section",
    ),
    "coverage": ("coverage_report",),
    "demo": ("demo_figure", "demo_text"),
    "forms": ("head_forms_section",),
    "gradients": ("gradient_figure",),
    "matplotlib": ("save_figure",),
    "organization": (
        "head_map_section",
        "head_tree_section",
        "heads_figure",
        "organization_summary",
        "paraproduct_figure",
        "slices_figure",
        "tensor_figure",
        "tree_figure",
        "tree_text",
        "trees_figure",
    ),
    "page.attention": ("attention_section", "attention_view"),
    "pruning": ("pruning_figure", "pruning_report", "pruning_section"),
    "rotary": ("frequency_figure", "frequency_report", "rotary_figure", "rotary_section"),
    "scores": ("maps_section", "published_report", "score_figure", "score_report", "scores_section"),
    "sparsity": (
        "invariance_figure",
        "invariance_section",
        "invariance_summary",
        "sparsity_figure",
        "sparsity_section",
    ),
    "tables": ("encode",),
    "training": ("training_figure", "training_section"),
}
_MODULES = {name: f"attngeo.show.{module}" for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'attngeo.show' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
