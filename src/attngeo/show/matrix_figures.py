"""Figures of matrices: heads of a network tensor, heads before and after organising, a paraproduct and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attngeo.show.canvas import COLUMN, PAGE, TINY, for_print, new_figure, panel_title, token_label
from attngeo.show.organization_text import axis_labels

if TYPE_CHECKING:
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

    from attngeo.organization.organize import Organization
    from attngeo.organization.paraproduct import Paraproduct
    from attngeo.organization.tensor import NetworkTensor
    from attngeo.organization.tree import Tree

_MOST_LABELS = 18  # an axis with more elements is not labelled one by one


@for_print
def tensor_figure(tensor: NetworkTensor) -> Figure:
    """Draw up to eight heads as matrices, evenly spaced from first to last; masked entries stay white."""
    count = min(8, tensor.shape[2])
    heads = np.unique(np.rint(np.linspace(0, tensor.shape[2] - 1, count)).astype(int))
    columns = min(4, count)
    rows = -(-count // columns)
    figure = new_figure(COLUMN if columns < 3 else PAGE, 2.1 * rows + 0.3)
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel, ax in enumerate(axes.flat):
        if panel >= count:
            ax.set_axis_off()
            continue
        head = heads[panel]
        matrix = tensor.values[:, :, head]  # [queries, keys]
        if tensor.mask is not None:
            matrix = np.where(tensor.mask if tensor.mask.ndim == 2 else tensor.mask[:, :, head], matrix, np.nan)
        low, high = np.nanquantile(matrix, (0.01, 0.99))
        image = ax.imshow(matrix, cmap="viridis", vmin=low, vmax=high, interpolation="nearest", aspect="auto")
        panel_title(ax, tensor.heads[head], tensor.stage if panel == 0 else "")
        _label_elements(ax.yaxis, tensor.queries, "queries" if panel % columns == 0 else "")
        _label_elements(ax.xaxis, tensor.keys, "keys" if panel + columns >= count else "")
        figure.colorbar(image, ax=ax, location="bottom", shrink=0.8, aspect=25).ax.tick_params(labelsize=TINY)
    return figure


@for_print
def paraproduct_figure(product: Paraproduct) -> Figure:
    """Draw f, A(f), the paraproduct and the residual, rows and columns in the order of their trees."""
    order = np.ix_(product.row_tree.order, product.column_tree.order)
    function = product.name or "A"
    parts = {
        "f": product.matrix,
        f"{function}(f)": product.exact,
        "paraproduct": product.approximation,
        "residual": product.residual,
    }
    figure = new_figure(PAGE, 2.2)
    axes = figure.subplots(1, 4)
    for ax, (name, matrix) in zip(axes, parts.items(), strict=True):
        low, high = np.quantile(matrix if name in ("f", "residual") else product.exact, (0.01, 0.99))
        options = {"vmin": low, "vmax": high, "interpolation": "nearest", "aspect": "auto"}
        image = ax.imshow(matrix[order], cmap="viridis", **options)
        panel_title(ax, name)
        ax.set_xticks([])
        ax.set_yticks([])
        bar = figure.colorbar(image, ax=ax, location="bottom", shrink=0.9, aspect=25)
        bar.ax.locator_params(nbins=4)  # the tick labels of a small residual are long
        bar.ax.tick_params(labelsize=TINY)
    return figure


@for_print
def slices_figure(organization: Organization) -> Figure:
    """Draw single heads as matrices, in the given order (above) and in the order of the trees (below).

    One head is taken from each of the four largest folders at the first level that has at least four; a matrix is drawn
    by itself.
    """
    values = organization.values
    is_tensor = values.ndim == 3
    heads = _typical_heads(organization.trees[2]) if is_tensor else [0]
    figure = new_figure(COLUMN if len(heads) < 3 else PAGE, 4.3)
    axes = figure.subplots(2, len(heads), squeeze=False)
    orders = [tree.order for tree in organization.trees[:2]]
    for column, head in enumerate(heads):
        matrix = values[:, :, head] if is_tensor else values  # [queries, keys]
        low, high = np.quantile(matrix, (0.01, 0.99))
        name = axis_labels(organization, 2)[head] if is_tensor else "matrix"
        for row, shown in enumerate((matrix, matrix[np.ix_(*orders)])):
            ax = axes[row, column]
            image = ax.imshow(shown, cmap="viridis", vmin=low, vmax=high, interpolation="nearest", aspect="auto")
            panel_title(ax, name if row == 0 else "", "as given" if row == 0 else "organised")
            for axis, side in enumerate((ax.yaxis, ax.xaxis)):
                labels = axis_labels(organization, axis)
                ordered = labels if row == 0 else [labels[element] for element in orders[axis]]
                outer = column == 0 if axis == 0 else row == 1
                _label_elements(side, ordered, ("queries", "keys")[axis] if outer else "")
        bar = figure.colorbar(image, ax=axes[:, column], location="bottom", shrink=0.8, aspect=30)
        bar.ax.tick_params(labelsize=TINY)
    return figure


def _label_elements(side: XAxis | YAxis, labels: Sequence[str], title: str) -> None:
    """Label each element of an axis, or only give their number where there are too many."""
    if len(labels) <= _MOST_LABELS:
        side.set_ticks(range(len(labels)), [token_label(label) for label in labels], fontsize=TINY)
        if side.axis_name == "x":
            for tick in side.get_ticklabels():
                tick.set_rotation(90)
    else:
        side.set_ticks([])
        title = f"{len(labels)} {title}" if title else ""
    side.set_label_text(title)


def _typical_heads(tree: Tree) -> list[int]:
    """Return the first head of each of the four largest folders, in tree order, at the first level that has four."""
    level = next((depth for depth, width in enumerate(tree.widths) if width >= 4), tree.depth - 1)
    row = tree.levels[level][tree.order]  # [heads], folder of each head in tree order
    sizes = np.bincount(row)
    largest = set(np.argsort(-sizes, kind="stable")[:4].tolist())
    first = {folder: int(tree.order[np.flatnonzero(row == folder)[0]]) for folder in dict.fromkeys(row.tolist())}
    return [head for folder, head in first.items() if folder in largest]
