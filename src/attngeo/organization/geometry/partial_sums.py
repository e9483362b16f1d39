"""Sums over many coordinates, computed in threads with the same digits for any number of threads.

The coordinates are divided into groups that depend only on the size of the problem. Each group is summed on its own,
and the groups are added in a fixed order; threads only decide who computes which group.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from attngeo.arrays import Floats
from attngeo.io import threads
from attngeo.organization.kernels.dispatch import NumbaKernels

GROUPS, FEWEST = 16, 4  # number of groups, and the least number if their sums are large
LARGE = 1 << 26  # bytes of group sums above which there are fewer groups
WORTH = 4e7  # operations that justify a group, whose matrix must be cleared and added


def group_count(size: int) -> int:
    """Return the number of groups for sums of `size` float64 numbers, limited by memory."""
    return max(FEWEST, min(GROUPS, LARGE // (8 * size)))


def sum_in_groups(
    jit: NumbaKernels,
    work: Callable[[int, int, Floats], object],
    total: int,
    shape: tuple[int, int, int],
    cost: float | None = None,
    upper_only: bool = True,
) -> Floats:
    """Return the sum of what `work(lo, hi, part)` adds to its own part [sides, rows, columns], over spans of 0 … total.

    cost:       approximate number of operations
    upper_only: the tiles below the diagonal are unused and are not added
    """
    cost = 0.5 * total * prod(shape) if cost is None else cost
    parts = np.zeros((min(group_count(prod(shape)), total, 1 + int(cost / WORTH)), *shape))

    def task(first: int, last: int) -> None:
        for group in range(first, last):
            work(total * group // len(parts), total * (group + 1) // len(parts), parts[group])

    threads.spread(task, len(parts), len(parts), cost)
    add = jit.distances.add_partial_sums
    threads.spread(lambda lo, hi: add(parts, upper_only, lo, hi), shape[1], cost=parts.size)
    return np.asarray(parts[0])
