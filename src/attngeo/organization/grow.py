"""Trees of an axis, grown from an affinity or from the slices themselves.

flexible_tree   folders are joined from the single elements up, by diffusion distance
binary_tree     folders are cut in two from the root down, by the second diffusion vector
haar_tree       folders are joined from the single elements up, to keep the l1 norm of the Haar coefficients small

For a Haar tree the slices of the axis are first expanded along the trees of the other axes. Joining the folders A and B
then adds

    √(|A||B| / (|A| + |B|)) · ‖mean_A − mean_B‖₁

to the total l1 norm: the sum of all coefficients with the Haar function that separates A from B. The sum over all
joins, plus the constant part, is the l1 norm of the whole expansion. This is Ward's method with the l1 norm. In each
round every pair of folders that are cheapest for each other is joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from attngeo.arrays import AnyArray, ArrayInput, Floats, Ints, is_torch
from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization.affinity import diffusion
from attngeo.organization.checks import checked, checked_affinity
from attngeo.organization.distance import l1_distances, l1_norm, slices_first
from attngeo.organization.haar import forward
from attngeo.organization.tree import Tree, canonical_labels


def flexible_tree(affinity: ArrayInput, constant: float = 1.0) -> Tree:
    """Return the tree of an affinity [n, n] whose folders are joined by their diffusion distance.

    The diffusion time is 1 for the single elements and doubles from level to level. Elements with identical rows of
    the affinity are joined first. A larger `constant` means that a folder must be closer to a group to join it if the
    group already has several folders.

    >>> position = np.array([0.0, 1.0, 10.0, 11.0, 30.0])
    >>> flexible_tree(np.exp(-abs(position[:, None] - position) / 5)).levels
    array([[0, 0, 0, 0, 0],
           [0, 0, 0, 0, 1],
           [0, 0, 1, 1, 2],
           [0, 1, 2, 3, 4]])
    """
    kernel = checked_affinity(affinity)
    if not constant > 0:
        raise InputError(f"flexible_tree: expected a positive constant, got {constant}")
    n = len(kernel)
    levels = [np.arange(n)]
    time = 1.0
    identical = _identical_rows(kernel)
    if identical.max() < n - 1:
        levels.append(identical)
        time *= 2
    walk = diffusion(kernel)
    while levels[-1].max() > 0:
        distances = walk.distances(time, levels[-1])  # [m, m] between folders
        np.fill_diagonal(distances, np.inf)
        groups = _join(distances, constant)
        levels.append(canonical_labels(groups[levels[-1]]))
        time *= 2
    return Tree(np.stack(levels[::-1]))


def _identical_rows(affinity: Floats) -> Ints:
    """Return labels [n] that are equal for elements with identical rows of the affinity."""
    if len(np.unique(affinity[:, 0])) == len(affinity):  # the first column already distinguishes all rows
        return np.arange(len(affinity))
    return canonical_labels(np.unique(affinity, axis=0, return_inverse=True)[1].reshape(-1))


def _join(distances: Floats, constant: float) -> Ints:
    """Return the group [m] of each of m folders on the next level, given their distances [m, m].

    The smallest remaining entry among the rows that still look for a partner is visited next. Its row joins the group
    of its column if that group is a single folder, or if the distance is below penalty · 2^(1 − size of the group).
    After a join neither of the two looks for a partner any more, but others may still join them. Otherwise the entry
    is struck out and the next smallest one of the row takes its place. Joining ends once one join has been made and
    the smallest entry is at least the median of all entries.

    A heap holds the smallest entry of each row. A row is sorted only when an entry of it is struck out.
    """
    m = len(distances)
    median = float(np.median(distances))
    penalty = median / constant
    group = list(range(m))
    members = [[i] for i in range(m)]
    looking = [True] * m
    nearest = distances.argmin(1)
    heap = list(zip(distances[np.arange(m), nearest].tolist(), range(m), nearest.tolist(), strict=True))
    heapify(heap)
    sorted_rows: dict[int, tuple[list[int], int]] = {}
    joined = False
    while heap:
        distance, row, column = heap[0]
        if not looking[row]:
            heappop(heap)
            continue
        if distance == np.inf or (joined and distance >= median):
            break
        heappop(heap)
        other = members[group[column]]
        # A row that looks for a partner is alone in its group, so the product of the group sizes is len(other).
        if len(other) == 1 or distance < penalty * 2.0 ** (1 - len(other)):
            group[row] = group[column]
            other.append(row)
            looking[row] = looking[column] = False
            joined = True
            continue
        ranks, rank = sorted_rows.get(row) or (np.argsort(distances[row], kind="stable").tolist(), 0)
        sorted_rows[row] = (ranks, rank + 1)
        heappush(heap, (float(distances[row, ranks[rank + 1]]), row, ranks[rank + 1]))
    # All distances are infinite: the folders lie in different components, which meet only at the root.
    return np.asarray(group if joined else [0] * m, np.int64)


def binary_tree(affinity: ArrayInput) -> Tree:
    """Return the tree of an affinity [n, n] whose folders are cut at the median of their second diffusion vector.

    The diffusion of a folder uses the affinity restricted to its elements.

    >>> position = np.array([0.0, 10.0, 1.0, 11.0])
    >>> binary_tree(np.exp(-abs(position[:, None] - position) / 5)).levels
    array([[0, 0, 0, 0],
           [0, 1, 0, 1],
           [0, 1, 2, 3]])
    """
    kernel = checked_affinity(affinity)
    n = len(kernel)
    levels = [np.zeros(n, np.int64)]
    while levels[-1].max() < n - 1:
        labels = levels[-1] * 2
        for folder in range(int(levels[-1].max()) + 1):
            members = np.flatnonzero(levels[-1] == folder)
            if len(members) > 1:
                order, cut = _cut(kernel[np.ix_(members, members)])
                labels[members[order[cut:]]] += 1
        levels.append(canonical_labels(labels))
    return Tree(np.stack(levels))


def _cut(affinity: Floats) -> tuple[Ints, int]:
    """Return an order [n] of a folder's elements and the position at which to cut it.

    If the folder has several connected components, each of them stays whole.
    """
    n = len(affinity)
    if (affinity == affinity[0]).all():
        return np.arange(n), (n + 1) // 2
    walk = diffusion(affinity)
    sizes = np.bincount(walk.components)
    if len(sizes) > 1:
        by_size = np.argsort(-sizes, kind="stable")
        cuts = np.cumsum(sizes[by_size])[:-1]
        rank = np.argsort(by_size)[walk.components]
        return np.argsort(rank, kind="stable"), int(cuts[np.abs(cuts - n / 2).argmin()])
    second = walk.vectors[:, 1]
    # The sign of an eigenvector is arbitrary. A positive sum of cubes fixes it for any order of the elements.
    second = second if (second**3).sum() >= 0 else -second
    return np.argsort(second, kind="stable"), (n + 1) // 2


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
    distances = l1_distances(slices, active)  # [active, active]
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
        between = l1_distances(slices, active[new], active[old])  # [new, old]
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
    counts = np.diff(start)

    def task(lo: int, hi: int) -> None:
        part = slices[:, lo:hi]
        for rank in range(int(counts.max())):  # the first of every group, then the second, …
            chosen = start[:-1][counts > rank] + rank
            weights = slices.new_tensor(share[chosen, None]) if is_torch(slices) else share[chosen, None]
            mean = weights * part[rows[chosen]]
            into = rows[start[:-1][counts > rank]]
            part[into] = mean if rank == 0 else part[into] + mean

    if is_torch(slices):
        task(0, slices.shape[1])
    else:  # a few columns at a time, so that the gathered rows stay in the cache
        threads.spread(task, slices.shape[1], -(-slices.shape[1] // 512), cost=2.0 * len(rows) * slices.shape[1])


def expanded_slices(array: AnyArray, axis: int, trees: Mapping[int, Tree]) -> Any:
    """Return the slices of `axis` as rows [n, k], each expanded along the trees of the other axes, in float64."""
    others = [other for other in range(array.ndim) if other != axis]
    slices = slices_first(array, axis, np.float64)
    slices = slices.double() if is_torch(slices) else slices
    expanded = forward(slices, {index + 1: trees[other] for index, other in enumerate(others)}, overwrite=True)
    return expanded.reshape(slices.shape[0], -1)
