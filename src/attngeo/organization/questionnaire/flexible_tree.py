"""The flexible tree of an affinity: folders are joined from the single elements up, by diffusion distance."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from attngeo.arrays import ArrayInput, Floats, Ints
from attngeo.errors import InputError
from attngeo.organization.checks import checked_affinity
from attngeo.organization.geometry.diffusion import diffusion
from attngeo.organization.trees.partition import canonical_labels
from attngeo.organization.trees.tree import Tree


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
    rows = np.ascontiguousarray(affinity + 0.0)  # turns −0 into 0
    first_with: dict[bytes, int] = {}
    return canonical_labels(
        np.asarray([first_with.setdefault(row.tobytes(), i) for i, row in enumerate(rows)], np.int64)
    )


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
