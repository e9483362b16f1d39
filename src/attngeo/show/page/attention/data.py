"""`attention_data`: an organised network as plain data for the page."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.organization.quantised import HEAD_ENERGY, quantise
from attngeo.organization.tree import Tree
from attngeo.show.organization_text import axis_labels
from attngeo.show.page.attention.packed import packed_coefficients

if TYPE_CHECKING:
    from attngeo.organization.organize import Organization

AXES = ("queries", "keys", "heads")


def attention_data(organization: Organization) -> dict[str, Any]:
    """Return the data from which the page draws the attention of every head: labels, trees and packed coefficients.

    >>> organization = organize(planted((16, 12, 8), seed=0)[0])
    >>> data = attention_data(organization)
    >>> data["shape"], data["heads"][:2], data["shares"][-1] >= 0.99, data["short"]
    ([16, 12, 8], ['0', '1'], True, [])
    """
    trees, values = organization.trees, organization.values
    labels = [list(axis_labels(organization, axis)) for axis in range(len(trees))]
    if len(trees) == 2:  # a matrix is a single head
        trees, values, labels = (*trees, Tree.dyadic(1)), values[:, :, None], [*labels, ["L0H0"]]
    kept = quantise(values, trees)
    short = np.flatnonzero((kept.head_shares[-1] < HEAD_ENERGY) & (kept.norms > 0))
    return {
        "name": getattr(organization.tensor, "name", ""),
        "stage": getattr(organization.tensor, "stage", "values"),
        "shape": list(values.shape),
        **dict(zip(AXES, labels, strict=True)),
        "trees": [tree_data(tree) for tree in trees],
        "norms": _digits(kept.norms, 9),
        "step": kept.step,
        "stops": kept.stops.tolist(),
        "counts": kept.counts.tolist(),
        "shares": _digits(kept.shares),
        "headShares": [_digits(row) for row in kept.head_shares],
        "short": [labels[2][head] for head in short],
        **packed_coefficients(kept),
    }


def tree_data(tree: Tree) -> dict[str, Any]:
    """Return a tree for the page: the rotations of its inverse Haar transform, its order, and its folders to draw.

    Each folder is [first, end, top, bottom]: a range of positions in the order, and the levels where it appears.
    """
    first, second, cosine, _, source = tree.rotations.steps(inverse=True, dtype=np.float64)
    ordered = tree.levels[:, tree.order]  # [depth, n]
    folders: dict[tuple[int, int], list[int]] = {}
    for level, row in enumerate(ordered):
        bounds = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), tree.size]
        for span in pairwise(bounds):
            folders.setdefault(span, [level, level])[1] = level
    return {
        "first": first.tolist(),
        "second": second.tolist(),
        "cosine": [float(f"{value:.10g}") for value in cosine.tolist()],
        "source": source.tolist(),
        "order": tree.order.tolist(),
        "depth": tree.depth,
        "folders": [[*span, *levels] for span, levels in folders.items()],
    }


def _digits(values: Any, digits: int = 7) -> list[float]:
    """Return numbers with a few significant digits, to keep the page small."""
    return [float(f"{value:.{digits}g}") for value in np.asarray(values).tolist()]
