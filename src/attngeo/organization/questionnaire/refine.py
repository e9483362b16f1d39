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

from attngeo.arrays import Floats, Ints, is_torch
from attngeo.io import threads
from attngeo.organization.geometry.l1 import l1_between, l1_distances, l1_norm
from attngeo.organization.haar.transform import forward
from attngeo.organization.kernels import dispatch
from attngeo.organization.kernels.memory import Scratch, slices_first
from attngeo.organization.trees.partition import canonical
from attngeo.organization.trees.tree import Tree


def haar_tree(slices: Any, sizes: Ints | None = None) -> tuple[Tree, float]:
    """A tree of the rows of slices [n, k], coefficients along the other axes, and the total l1 it gives them.

    `slices` is overwritten. Rows may be means of folders of so many elements as `sizes` [n] says.

    >>> tree, l1 = haar_tree(np.array([[0.0, 1.0], [5.0, 5.0], [0.0, 1.1], [5.0, 5.2]]))
    >>> tree.levels[1], round(l1, 2)
    (array([0, 1, 0, 1]), 20.41)
    """
    n = slices.shape[0]
    alive = np.arange(n)  # rows that hold the mean of a folder
    sizes = np.ones(n) if sizes is None else np.asarray(sizes, np.float64)
    distances = l1_distances(slices)  # [alive, alive]
    levels = [np.arange(n)]
    total = 0.0
    while len(alive) > 1:
        costs = distances * np.sqrt(np.outer(sizes, sizes) / np.add.outer(sizes, sizes))
        np.fill_diagonal(costs, np.inf)
        groups = _mutual(costs)  # [alive] label of each folder's new folder
        levels.append(canonical(groups[levels[-1]]))
        counts = np.bincount(groups)
        joined = np.flatnonzero(counts[groups] > 1)
        joined = joined[np.argsort(groups[joined], kind="stable")]  # group after group
        start = np.concatenate([[0], np.cumsum(counts[counts > 1])])
        # A group of several has no distances inside: whatever order they join in costs nothing.
        total += float(costs[joined[start[:-1]], joined[start[:-1] + 1]].sum())
        together = np.bincount(groups, sizes)
        _blend(slices, alive[joined], (sizes / together[groups])[joined], start)
        first = np.unique(groups, return_index=True)[1]
        alive, sizes, distances = alive[first], together, distances[np.ix_(first, first)]
        new, old = np.flatnonzero(counts > 1), np.flatnonzero(counts == 1)
        distances[np.ix_(new, new)] = l1_distances(slices, alive[new])
        anew = l1_between(slices, alive[new], alive[old])  # [new, old]
        distances[np.ix_(new, old)], distances[np.ix_(old, new)] = anew, anew.T
    mean = slices[int(alive[0])]  # all that is left
    return Tree(np.stack(levels[::-1])), total + l1_norm(mean) * float(sizes.sum()) ** 0.5


def _mutual(costs: Floats) -> Ints:
    """Labels of the folders after one round, numbered by first member: equal ones together, else mutual nearest."""
    m = len(costs)
    if (costs == 0).any():
        from scipy.sparse.csgraph import connected_components

        return canonical(connected_components(costs == 0, directed=False)[1].astype(np.int64))
    nearest = costs.argmin(1)
    mutual = nearest[nearest] == np.arange(m)
    return canonical(np.where(mutual, np.minimum(nearest, np.arange(m)), np.arange(m)))


def _blend(slices: Any, rows: Ints, share: Floats, start: Ints) -> None:
    """The first of each group rows[start[g]:start[g + 1]] becomes the mean of all of them, weighted by `share`."""
    into = rows[start[:-1]]
    if not is_torch(slices) and (jit := dispatch.numba_kernels()):
        work = 2.0 * len(rows) * slices.shape[1]
        threads.spread(lambda lo, hi: jit.blend(slices, into, share, start, rows, lo, hi), slices.shape[1], cost=work)
        return
    counts = np.diff(start)
    for rank in range(int(counts.max())):  # the first of every group, then the second, …
        groups = np.flatnonzero(counts > rank)
        places = start[groups] + rank
        part = _column(share[places], slices) * slices[rows[places]]
        slices[into[groups]] = part if rank == 0 else slices[into[groups]] + part


def _column(share: Floats, slices: Any) -> Any:
    return slices.new_tensor(share[:, None]) if is_torch(slices) else share[:, None]


def expanded_slices(array: Any, axis: int, trees: Mapping[int, Tree], scratch: Scratch | None = None) -> Any:
    """[n, k] float64: the slices of `axis`, each expanded along the trees of the other axes; in `scratch` if given."""
    slices = slices_first(array, axis)
    others = [other for other in range(array.ndim) if other != axis]
    along = {place + 1: trees[other] for place, other in enumerate(others)}
    if is_torch(slices):
        return forward(slices.double(), along).reshape(slices.shape[0], -1)
    out = (Scratch() if scratch is None else scratch).take(slices.shape)
    return forward(slices, along, out).reshape(slices.shape[0], -1)
