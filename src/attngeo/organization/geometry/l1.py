"""l1 distances between points with very many coordinates, on whatever is at hand: compiled loops, scipy, a GPU."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from attngeo.arrays import Floats, Ints, is_torch
from attngeo.io import threads
from attngeo.organization.kernels import dispatch

GROUPS, FEWEST = 16, 4  # partial sums, and how many where they are large
LARGE = 1 << 26  # bytes that partial sums may take before there are fewer of them
WORTH = 4e7  # operations that make a group: its matrix must be cleared and added
BYTES = 1 << 28  # what a block of coordinates may take on the plain paths


def l1_distances(points: Any, rows: Ints | None = None) -> Floats:
    """[n, n] l1 distances between points [n, k], or those of them that are chosen, as numpy."""
    if is_torch(points):
        return mirrored(l1_upper(_lying_last(points, rows)))
    if jit := dispatch.numba_kernels():
        points = np.ascontiguousarray(points, np.float64)
        chosen = np.arange(len(points)) if rows is None else rows
        side = fours(len(chosen))

        def within(lo: int, hi: int, part: Floats) -> None:
            jit.least_within(points, chosen, part[0], lo, hi)

        return from_least(jit, summed(jit, within, points.shape[1], (1, side, side)), len(chosen))[0]
    from scipy.spatial.distance import pdist, squareform

    points = points if rows is None else points[rows]
    step = max(1, BYTES // (8 * len(points)))
    parts = (points[:, lo : lo + step] for lo in range(0, points.shape[1], step))
    return np.asarray(squareform(sum(pdist(part, "cityblock") for part in parts)))


def l1_between(points: Any, rows: Ints, columns: Ints) -> Floats:
    """[rows, columns] l1 distances between chosen points of [n, k], as numpy."""
    if not len(rows) or not len(columns):
        return np.zeros((len(rows), len(columns)))
    if is_torch(points):
        return np.asarray(_torch(*(_lying_last(points, chosen) for chosen in (rows, columns))).cpu().numpy())
    if jit := dispatch.numba_kernels():
        points = np.ascontiguousarray(points, np.float64)
        r, c = len(rows), len(columns)

        def between(lo: int, hi: int, part: Floats) -> None:
            jit.least_between(points, rows, columns, part[0], lo, hi)

        (least,) = summed(jit, between, points.shape[1], (1, fours(r + 1), fours(c + 1)), half=False)
        return np.asarray(np.maximum(least[:r, c : c + 1] + least[r : r + 1, :c] - 2 * least[:r, :c], 0.0))
    from scipy.spatial.distance import cdist

    total = np.zeros((len(rows), len(columns)))
    step = max(1, BYTES // (8 * (len(rows) + len(columns))))
    for lo in range(0, points.shape[1], step):
        part = np.asarray(points[:, lo : lo + step], np.float64)
        total += cdist(part[rows], part[columns], "cityblock")
    return total


def from_least(jit: Any, least: Floats, n: int) -> list[Floats]:
    """Distances [n, n] of every side from its sums of minima, least [sides, n₄, n₄]."""
    found = [np.empty((n, n)) for _ in least]
    for side, distances in zip(least, found, strict=True):
        jit.from_least(side, distances)
    return found


def summed(
    jit: Any,
    work: Callable[[int, int, Floats], object],
    total: int,
    shape: tuple[int, int, int],
    cost: float | None = None,
    half: bool = True,
) -> Floats:
    """Σ of what work(lo, hi, part) adds to its own `part` [sides, rows, columns], over spans of 0 … total.

    Threads share out the spans. These follow from the problem alone, and are added in order: threads change no digit.
    Where `half`, only the tiles from the diagonal up.
    """
    cost = 0.5 * total * prod(shape) if cost is None else cost
    parts = np.zeros((min(groups(prod(shape)), total, 1 + int(cost / WORTH)), *shape))

    def task(first: int, last: int) -> None:
        for group in range(first, last):
            work(total * group // len(parts), total * (group + 1) // len(parts), parts[group])

    threads.spread(task, len(parts), len(parts), cost)
    threads.spread(lambda lo, hi: jit.add_up(parts, half, lo, hi), shape[1], cost=parts.size)
    return np.asarray(parts[0])


def l1_norm(array: Any) -> float:
    """Σ|entries|, in float64, without a second array."""
    if is_torch(array) or (jit := dispatch.numba_kernels()) is None:
        return float(abs(array).sum(dtype=None if is_torch(array) else np.float64))
    flat = np.ascontiguousarray(array).reshape(-1)
    parts = np.zeros(min(GROUPS, flat.size))

    def task(first: int, last: int) -> None:
        for group in range(first, last):
            span = slice(flat.size * group // len(parts), flat.size * (group + 1) // len(parts))
            parts[group] = jit.absolute_sum(flat[span])

    threads.spread(task, len(parts), len(parts), cost=flat.size)
    return float(parts.sum())


def groups(size: int) -> int:
    """How many partial sums of so many numbers: as many as threads may want and memory allows."""
    return max(FEWEST, min(GROUPS, LARGE // (8 * size)))


def fours(n: int) -> int:
    """n rounded up to a multiple of four."""
    return (n + 3) // 4 * 4


def mirrored(distances: Any) -> Floats:
    """The whole matrix from what is above its diagonal, a torch tensor, as numpy."""
    upper = distances.triu(1)
    return np.asarray((upper + upper.T).cpu().numpy())


def l1_upper(points: Any) -> Any:
    """[n, n] l1 distances between the points [k, n], torch tensors on their device; below the diagonal anything."""
    return _torch(points, points)


def _lying_last(points: Any, rows: Ints | None) -> Any:
    """[k, rows] float64: points [n, k], or those of them that are chosen, with their coordinates outermost."""
    import torch

    chosen = points if rows is None else points[torch.as_tensor(rows, device=points.device)]
    return chosen.double().T.contiguous()


def _torch(a: Any, b: Any) -> Any:
    """[rows, columns] l1 distances between points a [k, rows] and b [k, columns]."""
    import torch

    if a.is_cuda and (gpu := dispatch.triton_kernels()) is not None:
        return gpu.l1_tiles(a, b)
    distances = torch.zeros(a.shape[1], b.shape[1], dtype=torch.float64, device=a.device)
    # Blocks keep both sides in cache: cdist reads every pair of rows afresh.
    for lo in range(0, len(a), 4096):
        x, y = (side[lo : lo + 4096].T.contiguous() for side in (a, b))
        distances += torch.cdist(x, y, p=1.0)
    return distances
