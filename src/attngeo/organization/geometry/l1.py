"""l1 norms, and l1 distances between points with very many coordinates.

Each function uses the fastest implementation available: numba kernels, SciPy without numba, Triton or torch.cdist for
torch tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.arrays import AnyArray, Floats, Ints, is_torch, namespace
from attngeo.io import threads
from attngeo.organization.geometry.partial_sums import GROUPS, sum_in_groups
from attngeo.organization.kernels import dispatch
from attngeo.organization.kernels.dispatch import NumbaKernels

if TYPE_CHECKING:
    import torch

BLOCK_BYTES = 1 << 28  # memory for a block of coordinates where no compiled kernel is used


def l1_distances(points: AnyArray, rows: Ints | None = None) -> Floats:
    """Return the [n, n] l1 distances between points [n, k], or between the chosen rows of them, as a NumPy array."""
    if is_torch(points):
        return mirrored(l1_upper(_coordinates_first(points, rows)))
    if jit := dispatch.numba_kernels():
        points = np.ascontiguousarray(points, np.float64)
        chosen = np.arange(len(points)) if rows is None else rows
        side = multiple_of_four(len(chosen))

        def within(lo: int, hi: int, part: Floats) -> None:
            jit.distances.minima_within(points, chosen, part[0], lo, hi)

        return from_minima(jit, sum_in_groups(jit, within, points.shape[1], (1, side, side)), len(chosen))[0]
    from scipy.spatial.distance import pdist, squareform

    points = points if rows is None else points[rows]
    step = max(1, BLOCK_BYTES // (8 * len(points)))
    parts = (points[:, lo : lo + step] for lo in range(0, points.shape[1], step))
    return np.asarray(squareform(sum(pdist(part, "cityblock") for part in parts)))


def l1_between(points: AnyArray, rows: Ints, columns: Ints) -> Floats:
    """Return the [rows, columns] l1 distances between two choices of the points [n, k], as a NumPy array."""
    if not len(rows) or not len(columns):
        return np.zeros((len(rows), len(columns)))
    if is_torch(points):
        return np.asarray(_torch_l1(*(_coordinates_first(points, chosen) for chosen in (rows, columns))).cpu().numpy())
    if jit := dispatch.numba_kernels():
        points = np.ascontiguousarray(points, np.float64)
        r, c = len(rows), len(columns)

        def between(lo: int, hi: int, part: Floats) -> None:
            jit.distances.minima_between(points, rows, columns, part[0], lo, hi)

        shape = (1, multiple_of_four(r + 1), multiple_of_four(c + 1))
        (minima,) = sum_in_groups(jit, between, points.shape[1], shape, upper_only=False)
        return np.asarray(np.maximum(minima[:r, c : c + 1] + minima[r : r + 1, :c] - 2 * minima[:r, :c], 0.0))
    from scipy.spatial.distance import cdist

    total = np.zeros((len(rows), len(columns)))
    step = max(1, BLOCK_BYTES // (8 * (len(rows) + len(columns))))
    for lo in range(0, points.shape[1], step):
        part = np.asarray(points[:, lo : lo + step], np.float64)
        total += cdist(part[rows], part[columns], "cityblock")
    return total


def l1_norm(array: AnyArray) -> float:
    """Return Σ|entries|, summed in float64."""
    if is_torch(array) or (jit := dispatch.numba_kernels()) is None:
        return float(abs(array).sum(dtype=namespace(array).float64))
    flat = np.ascontiguousarray(array).reshape(-1)
    parts = np.zeros(min(GROUPS, flat.size))

    def task(first: int, last: int) -> None:
        for group in range(first, last):
            span = slice(flat.size * group // len(parts), flat.size * (group + 1) // len(parts))
            parts[group] = jit.arrays.absolute_sum(flat[span])

    threads.spread(task, len(parts), len(parts), cost=flat.size)
    return float(parts.sum())


def from_minima(jit: NumbaKernels, minima: Floats, n: int) -> list[Floats]:
    """Return the [n, n] distances of each side from its sums of minima; minima is [sides, n₄, n₄]."""
    all_distances = [np.empty((n, n)) for _ in minima]
    for side, distances in zip(minima, all_distances, strict=True):
        jit.distances.distances_from_minima(side, distances)
    return all_distances


def multiple_of_four(n: int) -> int:
    """Return n rounded up to a multiple of four, the side of a tile of the kernels."""
    return (n + 3) // 4 * 4


def mirrored(distances: torch.Tensor) -> Floats:
    """Return the symmetric matrix with the entries above the diagonal of `distances`, as a NumPy array."""
    upper = distances.triu(1)
    return np.asarray((upper + upper.T).cpu().numpy())


def l1_upper(points: torch.Tensor) -> torch.Tensor:
    """Return the l1 distances [n, n] between points [k, n]; entries below the diagonal are undefined."""
    return _torch_l1(points, points)


def _coordinates_first(points: torch.Tensor, rows: Ints | None) -> torch.Tensor:
    """Return points [n, k], or the chosen rows of them, as float64 [k, rows]."""
    import torch

    chosen = points if rows is None else points[torch.as_tensor(rows, device=points.device)]
    return chosen.double().T.contiguous()


def _torch_l1(a: Any, b: Any) -> Any:
    """Return the [rows, columns] l1 distances between points a [k, rows] and b [k, columns]."""
    import torch

    if a.is_cuda and (gpu := dispatch.triton_kernels()) is not None:
        return gpu.distances.l1_tiles(a, b)
    distances = torch.zeros(a.shape[1], b.shape[1], dtype=torch.float64, device=a.device)
    # Blocks keep both sides in cache; torch.cdist reads each pair of rows anew.
    for lo in range(0, len(a), 4096):
        x, y = (side[lo : lo + 4096].T.contiguous() for side in (a, b))
        distances += torch.cdist(x, y, p=1.0)
    return distances
