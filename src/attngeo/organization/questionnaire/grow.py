"""Trees from an affinity: joined from the elements up (flexible), or cut from the root down (binary)."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from attngeo.arrays import Floats, Ints
from attngeo.errors import InputError
from attngeo.organization.checks import checked_affinity
from attngeo.organization.geometry.diffusion import diffusion
from attngeo.organization.trees.partition import canonical
from attngeo.organization.trees.tree import Tree


def flexible_tree(affinity: Any, constant: float = 1.0) -> Tree:
    """The tree whose folders join by diffusion distance, at a time that doubles from level to level.

    The larger `constant`, the more a folder must be near to join a group that already has several.

    >>> place = np.array([0.0, 1.0, 10.0, 11.0, 30.0])
    >>> flexible_tree(np.exp(-abs(place[:, None] - place) / 5)).levels
    array([[0, 0, 0, 0, 0],
           [0, 0, 0, 0, 1],
           [0, 0, 1, 1, 2],
           [0, 1, 2, 3, 4]])
    """
    affinity = checked_affinity(affinity)
    if not constant > 0:
        raise InputError(f"flexible_tree: expected a positive constant, got {constant}")
    n = len(affinity)
    levels = [np.arange(n)]
    time = 1.0
    alike = _identical_rows(affinity)
    if alike.max() < n - 1:
        levels.append(alike)
        time *= 2
    walk = diffusion(affinity)
    while levels[-1].max() > 0:
        distances = walk.distances(time, levels[-1])  # [m, m] between folders
        np.fill_diagonal(distances, np.inf)
        groups = _join(distances, constant)
        levels.append(canonical(groups[levels[-1]]))
        time *= 2
    return Tree(np.stack(levels[::-1]))


def binary_tree(affinity: Any) -> Tree:
    """The tree whose folders are cut in two at the median of the second diffusion vector of the folder alone.

    >>> place = np.array([0.0, 10.0, 1.0, 11.0])
    >>> binary_tree(np.exp(-abs(place[:, None] - place) / 5)).levels
    array([[0, 0, 0, 0],
           [0, 1, 0, 1],
           [0, 1, 2, 3]])
    """
    affinity = checked_affinity(affinity)
    n = len(affinity)
    levels = [np.zeros(n, np.int64)]
    while levels[-1].max() < n - 1:
        labels = levels[-1] * 2
        for folder in range(int(levels[-1].max()) + 1):
            members = np.flatnonzero(levels[-1] == folder)
            if len(members) > 1:
                order, cut = _cut(affinity[np.ix_(members, members)])
                labels[members[order[cut:]]] += 1
        levels.append(canonical(labels))
    return Tree(np.stack(levels))


def _identical_rows(affinity: Floats) -> Ints:
    """Elements with the same row of affinities under one label."""
    if len(np.unique(affinity[:, 0])) == len(affinity):  # one column tells them all apart
        return np.arange(len(affinity))
    rows = np.ascontiguousarray(affinity + 0.0)  # −0 is 0
    seen: dict[bytes, int] = {}
    return canonical(np.asarray([seen.setdefault(row.tobytes(), i) for i, row in enumerate(rows)], np.int64))


def _join(distances: Floats, constant: float) -> Ints:
    """One level: group labels of the m folders whose distances [m, m] these are.

    Entries are visited from the smallest up, by rows still looking for a partner. A heap holds the least entry of each
    such row; a row refused once is sorted, so that its next entries come one by one.
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
        # The row is alone, or it would have stopped looking: |a||b| is the size of the other group.
        if len(other) == 1 or distance < penalty * 2.0 ** (1 - len(other)):
            group[row] = group[column]
            other.append(row)
            looking[row] = looking[column] = False
            joined = True
            continue
        ranks, place = sorted_rows.get(row) or (np.argsort(distances[row], kind="stable").tolist(), 0)
        sorted_rows[row] = (ranks, place + 1)
        heappush(heap, (float(distances[row, ranks[place + 1]]), row, ranks[place + 1]))
    # Nothing near anything: what is left has only the root in common.
    return np.asarray(group if joined else [0] * m, np.int64)


def _cut(affinity: Floats) -> tuple[Ints, int]:
    """An order of the elements and where to cut it; whole components on either side where there are several."""
    n = len(affinity)
    if (affinity == affinity[0]).all():
        return np.arange(n), (n + 1) // 2
    walk = diffusion(affinity)
    sizes = np.bincount(walk.components)
    if len(sizes) > 1:
        ranks = np.argsort(-sizes, kind="stable")
        cuts = np.cumsum(sizes[ranks])[:-1]
        place = np.argsort(ranks)[walk.components]
        return np.argsort(place, kind="stable"), int(cuts[np.abs(cuts - n / 2).argmin()])
    second = walk.vectors[:, 1]
    # An eigenvector has no sign; its skew has, and does not depend on the order of the elements.
    second = second if (second**3).sum() >= 0 else -second
    return np.argsort(second, kind="stable"), (n + 1) // 2
