"""Matrices as pictures: single heads of a network, a paraproduct and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.show.canvas import new_figure, token_label, panel_title
from attngeo.show.organization_text import axis_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attngeo.organization.capture.network_tensor import NetworkTensor
    from attngeo.organization.organization import Organization
    from attngeo.organization.softmax.paraproduct import Paraproduct
    from attngeo.organization.trees.tree import Tree

_NAMED = 36  # elements of an axis whose names can still be read


def tensor_figure(tensor: NetworkTensor) -> Figure:
    """Up to eight heads as matrices, evenly from the first to the last; what the mask shuts out is left white."""
    count = min(8, tensor.shape[2])
    heads = np.unique(np.rint(np.linspace(0, tensor.shape[2] - 1, count)).astype(int))
    columns = min(4, count)
    rows = -(-count // columns)
    figure = new_figure(2.7 * max(2, columns) + 0.4, 2.9 * rows + 0.3)
    axes = figure.subplots(rows, columns, squeeze=False)
    for place, ax in enumerate(axes.flat):
        if place >= count:
            ax.set_axis_off()
            continue
        head = heads[place]
        shown = tensor.values[:, :, head]
        if tensor.mask is not None:
            shown = np.where(tensor.mask if tensor.mask.ndim == 2 else tensor.mask[:, :, head], shown, np.nan)
        low, high = np.nanquantile(shown, (0.01, 0.99))
        picture = ax.imshow(shown, cmap="viridis", vmin=low, vmax=high, interpolation="nearest", aspect="auto")
        panel_title(ax, tensor.heads[head], tensor.stage if place == 0 else "")
        _name(ax.yaxis, tensor.queries, "queries" if place % columns == 0 else "")
        _name(ax.xaxis, tensor.keys, "keys" if place + columns >= count else "")
        figure.colorbar(picture, ax=ax, location="bottom", shrink=0.8, aspect=25).ax.tick_params(labelsize=6)
    return figure


def paraproduct_figure(product: Paraproduct) -> Figure:
    """f, A(f), its paraproduct and what is left, rows and columns in the order of their trees."""
    order = np.ix_(product.row_tree.order, product.column_tree.order)
    function = product.name or "A"
    parts = {
        "f": product.matrix,
        f"{function}(f)": product.exact,
        "paraproduct": product.approximation,
        "residual": product.residual,
    }
    figure = new_figure(11.2, 3.4)
    axes = figure.subplots(1, 4)
    for ax, (name, matrix) in zip(axes, parts.items(), strict=True):
        low, high = np.quantile(matrix if name in ("f", "residual") else product.exact, (0.01, 0.99))
        options = {"vmin": low, "vmax": high, "interpolation": "nearest", "aspect": "auto"}
        picture = ax.imshow(matrix[order], cmap="viridis", **options)
        panel_title(ax, name)
        ax.set_xticks([])
        ax.set_yticks([])
        bar = figure.colorbar(picture, ax=ax, location="bottom", shrink=0.9, aspect=25)
        bar.ax.locator_params(nbins=4)  # small residuals have long numbers
        bar.ax.tick_params(labelsize=7)
    return figure


def slices_figure(organization: Organization) -> Figure:
    """Single heads as matrices, above in the order given, below in the order of the trees.

    One head of each of the largest folders on the first level with four or more; a matrix has only itself.
    """
    values = organization.values
    solid = values.ndim == 3
    heads = _typical(organization.trees[2]) if solid else [0]
    figure = new_figure(2.9 * max(2, len(heads)) + 0.6, 6.2)
    axes = figure.subplots(2, len(heads), squeeze=False)
    orders = [tree.order for tree in organization.trees[:2]]
    for column, head in enumerate(heads):
        matrix = values[:, :, head] if solid else values
        low, high = np.quantile(matrix, (0.01, 0.99))
        name = axis_labels(organization, 2)[head] if solid else "matrix"
        for row, shown in enumerate((matrix, matrix[np.ix_(*orders)])):
            ax = axes[row, column]
            picture = ax.imshow(shown, cmap="viridis", vmin=low, vmax=high, interpolation="nearest", aspect="auto")
            panel_title(ax, name if row == 0 else "", "as given" if row == 0 else "organised")
            for axis, side in enumerate((ax.yaxis, ax.xaxis)):
                names = axis_labels(organization, axis)
                kept = names if row == 0 else [names[place] for place in orders[axis]]
                outer = column == 0 if axis == 0 else row == 1
                _name(side, kept, ("queries", "keys")[axis] if outer else "")
        bar = figure.colorbar(picture, ax=axes[:, column], location="bottom", shrink=0.8, aspect=30)
        bar.ax.tick_params(labelsize=7)
    return figure


def _name(side: Any, names: Sequence[str], words: str) -> None:
    if len(names) <= _NAMED:
        side.set_ticks(range(len(names)), [token_label(name) for name in names], fontsize=5)
        if side.axis_name == "x":
            for label in side.get_ticklabels():
                label.set_rotation(90)
    else:
        side.set_ticks([])
        words = f"{len(names)} {words}" if words else ""
    side.set_label_text(words, fontsize=8)


def _typical(tree: Tree) -> list[int]:
    """The first head of each of the four largest folders of the first level that has four, in tree order."""
    level = next((place for place, width in enumerate(tree.widths) if width >= 4), tree.depth - 1)
    row = tree.levels[level][tree.order]
    sizes = np.bincount(row)
    largest = set(np.argsort(-sizes, kind="stable")[:4].tolist())
    first = {folder: int(tree.order[np.flatnonzero(row == folder)[0]]) for folder in dict.fromkeys(row.tolist())}
    return [head for folder, head in first.items() if folder in largest]
