"""A tree made for its Haar coefficients: folders join where the coefficient that parts them costs least.

Expand the slices of an axis along the trees of the other axes first. Joining folders A and B then adds to the total l1

    √(|A||B| / (|A| + |B|)) · ‖mean_A − mean_B‖₁,

the size of all coefficients with the Haar function that tells A from B: the sum over all joins is the l1 of the
whole expansion. Ward's method, but for l1. In each round every two folders that are cheapest for one another join.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attngeo.organization.arrays import Floats, Ints, Scratch, is_torch, slices_first
from attngeo.organization.haar import forward
from attngeo.organization.l1 import l1_between, l1_distances
from attngeo.organization.tree import Tree, canonical


def haar_tree(slices: Any) -> tuple[Tree, float]:
    """A tree of the rows of slices [n, k], coefficients along the other axes, and the total l1 it gives them.

    `slices` is overwritten.

    >>> tree, l1 = haar_tree(np.array([[0.0, 1.0], [5.0, 5.0], [0.0, 1.1], [5.0, 5.2]]))
    >>> tree.levels[1], round(l1, 2)
    (array([0, 1, 0, 1]), 20.41)
    """
    n = slices.shape[0]
    alive = np.arange(n)  # rows that hold the mean of a folder
    sizes = np.ones(n)
    centre = slices.mean(0)
    slices -= centre  # no distance changes, and what the distances are computed from gets small
    distances = l1_distances(slices)  # [alive, alive]
    levels = [np.arange(n)]
    total = 0.0
    while len(alive) > 1:
        weights = np.sqrt(np.outer(sizes, sizes) / np.add.outer(sizes, sizes))
        costs = distances * weights
        np.fill_diagonal(costs, np.inf)
        groups = _mutual(costs)  # [alive] label of each folder's new folder
        levels.append(canonical(groups[levels[-1]]))
        pairs = [np.flatnonzero(groups == g) for g in np.flatnonzero(np.bincount(groups) > 1)]
        # A group of several has no distances inside: whatever order they join in costs nothing.
        total += sum(float(costs[pair[0], pair[1]]) for pair in pairs)
        for pair in pairs:
            share = sizes[pair] / sizes[pair].sum()
            _blend(slices, alive[pair], share)
        _, first = np.unique(groups, return_index=True)
        sizes = np.bincount(groups, sizes)
        changed = np.flatnonzero(np.bincount(groups) > 1)
        alive, distances = alive[first], distances[np.ix_(first, first)]
        if len(alive) > 1:
            anew = l1_between(slices, alive[changed], alive)  # [changed, alive]
            distances[changed], distances[:, changed] = anew, anew.T
            distances = np.maximum(distances, distances.T)
    return Tree(np.stack(levels[::-1])), total + float(abs(centre).sum()) * n**0.5


def _mutual(costs: Floats) -> Ints:
    """Labels of the folders after one round, numbered by first member: equal ones together, else mutual nearest."""
    m = len(costs)
    if (costs == 0).any():
        from scipy.sparse.csgraph import connected_components

        return canonical(connected_components(costs == 0, directed=False)[1].astype(np.int64))
    nearest = costs.argmin(1)
    mutual = nearest[nearest] == np.arange(m)
    return canonical(np.where(mutual, np.minimum(nearest, np.arange(m)), np.arange(m)))


def _blend(slices: Any, rows: Ints, share: Floats) -> None:
    """The first of `rows` becomes their mean, weighted by `share`."""
    first = int(rows[0])
    slices[first] *= float(share[0])
    for row, part in zip(rows[1:].tolist(), share[1:].tolist(), strict=True):
        slices[first] += part * slices[row]


def expanded_slices(array: Any, axis: int, trees: Mapping[int, Tree], scratch: Scratch | None = None) -> Any:
    """[n, k] float64: the slices of `axis`, each expanded along the trees of the other axes; in `scratch` if given."""
    slices = slices_first(array, axis)
    others = [other for other in range(array.ndim) if other != axis]
    along = {place + 1: trees[other] for place, other in enumerate(others)}
    if is_torch(slices):
        return forward(slices.double(), along).reshape(slices.shape[0], -1)
    out = (Scratch() if scratch is None else scratch).take(slices.shape)
    return forward(slices, along, out).reshape(slices.shape[0], -1)
