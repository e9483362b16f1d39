"""Figures of matrices: heads of a network tensor, heads before and after organising, a paraproduct and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attngeo.arrays import AnyFloats
from attngeo.charts import COLUMN, PAGE, Axis, Bar, Figure, Heatmap, Panel, token_label
from attngeo.show.matplotlib import drawn
from attngeo.show.organization_text import axis_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from attngeo.organization.organize import Organization
    from attngeo.organization.paraproduct import Paraproduct
    from attngeo.organization.tensor import NetworkTensor
    from attngeo.organization.tree import Tree

_MOST_LABELS = 18  # an axis with more elements is not labelled one by one


def tensor_figure(tensor: NetworkTensor) -> Drawing:
    """Draw up to eight heads as matrices, evenly spaced from first to last; masked entries stay white."""
    count = min(8, tensor.shape[2])
    columns = min(4, count)
    panels = []
    for at, head in enumerate(np.rint(np.linspace(0, tensor.shape[2] - 1, count)).astype(int)):
        matrix = tensor.values[:, :, head]  # [queries, keys]
        if tensor.mask is not None:
            matrix = np.where(tensor.mask if tensor.mask.ndim == 2 else tensor.mask[:, :, head], matrix, np.nan)
        rows = _elements(tensor.queries, "queries" if at % columns == 0 else "", down=True)
        across = _elements(tensor.keys, "keys" if at + columns >= count else "")
        heat = Heatmap(matrix, _central(matrix), bar=Bar(below=True))
        panels.append(Panel(tensor.heads[head], [heat], across, rows, tensor.stage if at == 0 else ""))
    size = (COLUMN if columns < 3 else PAGE, 2.1 * -(-count // columns) + 0.3)
    return drawn(Figure(panels, columns, size=size))


def paraproduct_figure(product: Paraproduct) -> Drawing:
    """Draw f, A(f), the paraproduct and the residual, rows and columns in the order of their trees."""
    order = np.ix_(product.row_tree.order, product.column_tree.order)
    exact = _central(product.exact)
    parts = {
        "f": (product.matrix, _central(product.matrix)),
        f"{product.name or 'A'}(f)": (product.exact, exact),
        "paraproduct": (product.approximation, exact),
        "residual": (product.residual, _central(product.residual)),
    }
    panels = [
        Panel(
            name, [Heatmap(matrix[order], limits, bar=Bar(below=True))], Axis(flat=True), Axis(flat=True, reverse=True)
        )
        for name, (matrix, limits) in parts.items()
    ]
    return drawn(Figure(panels, 4, size=(PAGE, 2.2)))


def slices_figure(organization: Organization) -> Drawing:
    """Draw single heads as matrices, in the given order (above) and in the order of the trees (below).

    One head is taken from each of the four largest folders at the first level that has at least four; a matrix is drawn
    by itself.
    """
    values = organization.values if organization.values.ndim == 3 else organization.values[:, :, None]
    is_tensor = organization.values.ndim == 3
    heads = _typical_heads(organization.trees[2]) if is_tensor else [0]
    orders = [tree.order for tree in organization.trees[:2]]
    queries, keys = (axis_labels(organization, axis) for axis in (0, 1))
    panels = []
    for organised in (False, True):
        for at, head in enumerate(heads):
            matrix = values[:, :, head]  # [queries, keys]
            places = orders if organised else [np.arange(size) for size in matrix.shape]
            panels.append(
                Panel(
                    "" if organised else axis_labels(organization, 2)[head] if is_tensor else "matrix",
                    [
                        Heatmap(
                            matrix[np.ix_(*places)],
                            _central(matrix),
                            bar=Bar(of="column", below=True) if organised else None,
                        )
                    ],
                    _elements([keys[i] for i in places[1]], "keys" if organised else ""),
                    _elements([queries[i] for i in places[0]], "" if at else "queries", down=True),
                    "organised" if organised else "as given",
                )
            )
    return drawn(Figure(panels, len(heads), size=(COLUMN if len(heads) < 3 else PAGE, 4.3)))


def _central(matrix: AnyFloats) -> tuple[float, float]:
    """Return the range of the central 98% of the values, which a few outliers do not widen."""
    low, high = np.nanquantile(matrix, (0.01, 0.99)).tolist()
    return low, high


def _elements(labels: Sequence[str], title: str, down: bool = False) -> Axis:
    """Return an axis that names each element, or only gives their number where there are too many."""
    if len(labels) <= _MOST_LABELS:
        return Axis(title, categories=tuple(token_label(label) for label in labels), reverse=down)
    return Axis(f"{len(labels)} {title}" if title else "", flat=True, reverse=down)


def _typical_heads(tree: Tree) -> list[int]:
    """Return the first head of each of the four largest folders, in tree order, at the first level that has four."""
    level = next((depth for depth, width in enumerate(tree.widths) if width >= 4), tree.depth - 1)
    row = tree.levels[level][tree.order]  # [heads], folder of each head in tree order
    sizes = np.bincount(row)
    largest = set(np.argsort(-sizes, kind="stable")[:4].tolist())
    first = {folder: int(tree.order[np.flatnonzero(row == folder)[0]]) for folder in dict.fromkeys(row.tolist())}
    return [head for folder, head in first.items() if folder in largest]
