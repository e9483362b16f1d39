"""The Haar tree of an axis: folders are joined bottom-up to keep the l1 norm of the Haar coefficients small.

The slices of the axis are first expanded along the trees of the other axes. Joining the folders A and B then adds

    √(|A||B| / (|A| + |B|)) · ‖mean_A − mean_B‖₁

to the total l1 norm: the sum of all coefficients with the Haar function that separates A from B. The sum over all
joins, plus the constant part, is the l1 norm of the whole expansion. This is Ward's method with the l1 norm. In each
round every pair of folders that are cheapest for each other is joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attngeo.arrays import AnyArray, ArrayInput, Floats, Ints, is_torch
from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization.checks import checked
from attngeo.organization.geometry.l1 import l1_between, l1_distances, l1_norm
from attngeo.organization.haar.transform import forward
from attngeo.organization.kernels import dispatch
from attngeo.organization.kernels.memory import Scratch, slices_first
from attngeo.organization.trees.partition import canonical_labels
from attngeo.organization.trees.tree import Tree


def haar_tree(slices: ArrayInput, sizes: Ints | None = None) -> tuple[Tree, float]:
    """Return a tree of the rows of `slices`, and the l1 norm of the Haar coefficients along it.

    slices: [n, k] coefficients along the other axes, as `expanded_slices` returns them
    sizes:  [n] number of elements whose mean each row is, if rows are folder means; 1 by default

    >>> tree, l1 = haar_tree([[0.0, 1.0], [5.0, 5.0], [0.0, 1.1], [5.0, 5.2]])
    >>> tree.levels[1], round(l1, 2)
    (array([0, 1, 0, 1]), 20.41)
    """
    rows = checked(slices, "slices", (2,))
    n = len(rows)
    if sizes is not None and (np.shape(sizes) != (n,) or not np.greater(sizes, 0).all()):
        raise InputError(f"sizes: expected {n} positive numbers, one per row of the slices")
    return haar_tree_in_place(rows.double().clone() if is_torch(rows) else np.array(rows, np.float64), sizes)


def haar_tree_in_place(slices: AnyArray, sizes: Ints | None = None) -> tuple[Tree, float]:
    """Return what `haar_tree` returns, for float64 `slices` in C order, which are overwritten."""
    n = slices.shape[0]
    active = np.arange(n)  # rows that hold the mean of a present folder
    weights = np.ones(n) if sizes is None else np.asarray(sizes, np.float64)  # [active] folder sizes
    distances = l1_distances(slices)  # [active, active]
    levels = [np.arange(n)]
    total = 0.0
    while len(active) > 1:
        costs = distances * np.sqrt(np.outer(weights, weights) / np.add.outer(weights, weights))
        np.fill_diagonal(costs, np.inf)
        groups = _mutual_nearest(costs)  # [active] label of each folder's new folder
        levels.append(canonical_labels(groups[levels[-1]]))
        counts = np.bincount(groups)
        joined = np.flatnonzero(counts[groups] > 1)
        joined = joined[np.argsort(groups[joined], kind="stable")]  # one group after another
        start = np.concatenate([[0], np.cumsum(counts[counts > 1])])
        # A group of more than two folders has only distances of 0 inside, so its first pair gives the whole cost.
        total += float(costs[joined[start[:-1]], joined[start[:-1] + 1]].sum())
        merged = np.asarray(np.bincount(groups, weights), np.float64)
        _average(slices, active[joined], (weights / merged[groups])[joined], start)
        first = np.unique(groups, return_index=True)[1]
        active, weights, distances = active[first], merged, distances[np.ix_(first, first)]
        new, old = np.flatnonzero(counts > 1), np.flatnonzero(counts == 1)
        distances[np.ix_(new, new)] = l1_distances(slices, active[new])
        between = l1_between(slices, active[new], active[old])  # [new, old]
        distances[np.ix_(new, old)], distances[np.ix_(old, new)] = between, between.T
    mean = slices[int(active[0])]  # [k] mean of all rows, which gives the constant part
    return Tree(np.stack(levels[::-1])), total + l1_norm(mean) * float(weights.sum()) ** 0.5


def _mutual_nearest(costs: Floats) -> Ints:
    """Return the label [m] of each folder after one round, numbered by first member, given the costs [m, m].

    If some costs are 0, folders connected by them are joined. Otherwise pairs that are cheapest for each other are.
    """
    m = len(costs)
    if (costs == 0).any():
        from scipy.sparse.csgraph import connected_components

        return canonical_labels(connected_components(costs == 0, directed=False)[1].astype(np.int64))
    nearest = costs.argmin(1)
    mutual = nearest[nearest] == np.arange(m)
    return canonical_labels(np.where(mutual, np.minimum(nearest, np.arange(m)), np.arange(m)))


def _average(slices: Any, rows: Ints, share: Floats, start: Ints) -> None:
    """Replace the first row of each group rows[start[g]:start[g + 1]] by the mean of the group, weighted by `share`."""
    into = rows[start[:-1]]
    if not is_torch(slices) and (jit := dispatch.numba_kernels()):
        work = 2.0 * len(rows) * slices.shape[1]
        average = jit.arrays.average_rows
        threads.spread(lambda lo, hi: average(slices, into, share, start, rows, lo, hi), slices.shape[1], cost=work)
        return
    counts = np.diff(start)
    for rank in range(int(counts.max())):  # the first of every group, then the second, …
        groups = np.flatnonzero(counts > rank)
        chosen = start[groups] + rank
        part = _column(share[chosen], slices) * slices[rows[chosen]]
        slices[into[groups]] = part if rank == 0 else slices[into[groups]] + part


def _column(share: Floats, slices: Any) -> Any:
    """Return `share` as a column [m, 1] of the same kind of array as `slices`."""
    return slices.new_tensor(share[:, None]) if is_torch(slices) else share[:, None]


def expanded_slices(array: AnyArray, axis: int, trees: Mapping[int, Tree], scratch: Scratch | None = None) -> Any:
    """Return the slices of `axis` as rows [n, k], each expanded along the trees of the other axes, in float64.

    A NumPy result lies in the memory of `scratch` if that is given.
    """
    slices = slices_first(array, axis)
    others = [other for other in range(array.ndim) if other != axis]
    along = {index + 1: trees[other] for index, other in enumerate(others)}
    if is_torch(slices):
        return forward(slices.double(), along).reshape(slices.shape[0], -1)
    out = (Scratch() if scratch is None else scratch).take(slices.shape)
    return forward(slices, along, out).reshape(slices.shape[0], -1)
