"""l1 distances between points with very many coordinates, on whatever is at hand: compiled loops, scipy, a GPU."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from attngeo.organization import threads
from attngeo.organization.arrays import Floats, Ints, is_torch

GROUPS = 16  # partial sums at most
WORTH = 1.5e7  # operations that make a group: its matrix must be cleared and added
BYTES = 1 << 28  # what a block of coordinates may take on the plain paths


def l1_distances(points: Any) -> Floats:
    """[n, n] l1 distances between the points [n, k], as numpy."""
    jit = None if is_torch(points) else threads.jit()
    if is_torch(points):
        upper = np.triu(_torch(points, None, None), 1)
        return np.asarray(upper + upper.T)
    if jit is None:
        from scipy.spatial.distance import pdist, squareform

        step = max(1, BYTES // (8 * len(points)))
        parts = (points[:, lo : lo + step] for lo in range(0, points.shape[1], step))
        return np.asarray(squareform(sum(pdist(part, "cityblock") for part in parts)))
    points = np.ascontiguousarray(points, np.float64)
    least = summed(
        lambda lo, hi, part: jit.least_within(points, part, lo, hi),
        points.shape[1],
        (fours(len(points)), fours(len(points))),
    )
    return from_least(least[: len(points), : len(points)])


def l1_between(points: Any, rows: Ints, columns: Ints) -> Floats:
    """[rows, columns] l1 distances between chosen points of [n, k], as numpy."""
    if is_torch(points):
        return _torch(points, rows, columns)
    if jit := threads.jit():
        points = np.ascontiguousarray(points, np.float64)
        r, c = len(rows), len(columns)
        least = summed(
            lambda lo, hi, part: jit.least_between(points, rows, columns, part, lo, hi),
            points.shape[1],
            (fours(r + 1), fours(c + 1)),
        )
        return np.asarray(np.maximum(least[:r, c : c + 1] + least[r : r + 1, :c] - 2 * least[:r, :c], 0.0))
    from scipy.spatial.distance import cdist

    total = np.zeros((len(rows), len(columns)))
    step = max(1, BYTES // (8 * (len(rows) + len(columns))))
    for lo in range(0, points.shape[1], step):
        part = np.asarray(points[:, lo : lo + step], np.float64)
        total += cdist(part[rows], part[columns], "cityblock")
    return total


def from_least(least: Floats) -> Floats:
    """|a − b| = a + b − 2 min(a, b): distances from the sums of minima of all pairs, filled from the diagonal up.

    Two operations a number instead of three. What cancels is small when the points are centred.
    """
    own = np.diag(least)
    upper = np.triu(np.maximum(own[:, None] + own[None, :] - 2 * least, 0.0), 1)
    return np.asarray(upper + upper.T)


def summed(
    work: Callable[[int, int, Floats], None], total: int, shape: tuple[int, ...], cost: float | None = None
) -> Floats:
    """An array of `shape`: what work(lo, hi, part) adds up over 0 … total, in groups that threads share out.

    The groups follow from the problem alone, and are added in order: threads change no digit.
    """
    cost = 0.5 * total * prod(shape) if cost is None else cost
    parts = np.zeros((min(GROUPS, total, 1 + int(cost / WORTH)), *shape))

    def task(first: int, last: int) -> None:
        for group in range(first, last):
            work(total * group // len(parts), total * (group + 1) // len(parts), parts[group])

    threads.spread(task, len(parts), len(parts), cost)
    return np.asarray(parts.sum(0)) if len(parts) > 1 else parts[0]


def l1_norm(array: Any) -> float:
    """Σ|entries|, in float64, without a second array."""
    if is_torch(array) or (jit := threads.jit()) is None:
        return float(abs(array).sum(dtype=None if is_torch(array) else np.float64))
    flat = np.ascontiguousarray(array).reshape(-1)
    parts = np.zeros(min(GROUPS, flat.size))

    def task(first: int, last: int) -> None:
        for group in range(first, last):
            span = slice(flat.size * group // len(parts), flat.size * (group + 1) // len(parts))
            parts[group] = jit.absolute_sum(flat[span])

    threads.spread(task, len(parts), len(parts), cost=flat.size)
    return float(parts.sum())


def fours(n: int) -> int:
    """n rounded up to a multiple of four."""
    return (n + 3) // 4 * 4


def _torch(points: Any, rows: Ints | None, columns: Ints | None) -> Floats:
    """The same with torch, in float64 on the device that holds the points; all of them where none are chosen."""
    import torch

    points = points.double()
    a = points if rows is None else points[torch.as_tensor(rows)]  # [rows, k]
    b = points if columns is None else points[torch.as_tensor(columns)]  # [columns, k]
    if points.is_cuda and (tiles := _tiles()) is not None:
        distances = tiles.l1_tiles(a, b)
    else:
        distances = torch.zeros(len(a), len(b), dtype=torch.float64, device=points.device)
        # Blocks keep both sides in cache: cdist reads every pair of rows afresh.
        for lo in range(0, points.shape[1], 4096):
            distances += torch.cdist(a[:, lo : lo + 4096], b[:, lo : lo + 4096], p=1.0)
    return np.asarray(distances.cpu().numpy())


def _tiles() -> Any:
    try:
        from attngeo.organization import gpu
    except ImportError:  # no triton: torch's own cdist, exact too, only slower
        return None
    return gpu
