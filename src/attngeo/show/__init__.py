"""Results as text and figures. This room draws what it is given and computes nothing.

Figures    score_figure, demo_figure, training_figure, gradient_figure, tree_figure, trees_figure, heads_figure,
           slices_figure, tensor_figure, sparsity_figure, invariance_figure, paraproduct_figure, save_figure
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "canvas": ("save_figure",),
    "demo_report": ("demo_figure",),
    "gradient_figures": ("gradient_figure",),
    "matrix_figures": ("paraproduct_figure", "slices_figure", "tensor_figure"),
    "organization_figures": ("heads_figure", "invariance_figure", "sparsity_figure", "tree_figure", "trees_figure"),
    "score_figures": ("score_figure",),
    "training_curves": ("training_figure",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attngeo.show' has no attribute {name!r}")
    return getattr(import_module(f"attngeo.show.{_HOME[name]}"), name)
