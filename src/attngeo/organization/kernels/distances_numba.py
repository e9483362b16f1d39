"""CPU loops for l1 distances between many points, compiled with numba.

They use |a − b| = a + b − 2 min(a, b): a sum of minima takes two operations per coordinate, a sum of absolute
differences takes three. The loops therefore collect

    minima[i, j] = Σ_k min(x_ik, x_jk)

and `distances_from_minima` turns the sums into distances, because Σ_k x_ik is minima[i, i]. Distances do not depend on
the origin, so a centre is subtracted from all points first: the sums are then small and little cancels.

Sums are collected in tiles of SIDE × SIDE points. Matrices of sums are padded to a multiple of SIDE ("n₄" below), so
that every pair goes through the same code and equal points get equal sums to the last bit.
"""

from __future__ import annotations

import numpy as np

from attngeo.arrays import Floats, Ints
from attngeo.organization.kernels.numba_compile import compile_loop, compile_vector_loop
from attngeo.organization.kernels.simd_llvm import LANES, SIDE, add_minima_tile

COORDINATES = 512  # coordinates per pass over the tiles: a row of them fits the first-level cache beside others
CACHED_ROWS = 64  # rows of that length that stay in the second-level cache


@compile_loop
def add_minima_tiles(points: Floats, minima: Floats, length: int) -> None:
    """Add Σ min over the first `length` coordinates of points [n₄, ·] to minima [n₄, n₄], tiles from the diagonal up.

    CACHED_ROWS rows of points stay in cache while all others are compared with them.
    """
    n = minima.shape[0]
    for k in range(0, length, COORDINATES):
        wide = min(COORDINATES, length - k)
        for j0 in range(0, n, CACHED_ROWS):
            j1 = min(n, j0 + CACHED_ROWS)
            for i in range(0, j1, SIDE):
                for j in range(max(i, j0), j1, SIDE):
                    add_minima_tile(points, points, minima, i, j, k, wide)


@compile_loop
def _copy_centred(row: Floats, centre: Floats, start: int, wide: int, out: Floats, padded: int) -> None:
    """Set out[:wide] = (row − centre)[start : start + wide], and zeros from there to `padded`."""
    for x in range(wide):
        out[x] = row[start + x] - centre[start + x]
    for x in range(wide, padded):
        out[x] = 0.0


@compile_loop
def minima_within(points: Floats, rows: Ints, minima: Floats, lo: int, hi: int) -> None:
    """Add Σ min over coordinates lo … hi of the points [·, k] chosen by `rows` [n] to minima [n₄, n₄].

    Tiles below the diagonal are left out. The first chosen point is the centre.
    """
    centre = points[rows[0]]
    block = np.zeros((minima.shape[0], COORDINATES))
    for k in range(lo, hi, COORDINATES):
        wide = min(COORDINATES, hi - k)
        padded = (wide + LANES - 1) // LANES * LANES
        for i in range(rows.size):
            _copy_centred(points[rows[i]], centre, k, wide, block[i], padded)
        add_minima_tiles(block, minima, padded)


@compile_loop
def minima_between(points: Floats, rows: Ints, columns: Ints, minima: Floats, lo: int, hi: int) -> None:
    """Add Σ min over coordinates lo … hi between two choices of points [·, k] to minima [(rows + 1)₄, (columns + 1)₄].

    The first row is the centre. One more row and one more column are infinite: a minimum with infinity is the number
    itself, so they collect the sums Σ_k x_ik that the distances need.
    """
    centre = points[rows[0]]
    a, b = np.zeros((minima.shape[0], COORDINATES)), np.zeros((minima.shape[1], COORDINATES))
    for k in range(lo, hi, COORDINATES):
        wide = min(COORDINATES, hi - k)
        padded = (wide + LANES - 1) // LANES * LANES
        for i in range(rows.size):
            _copy_centred(points[rows[i]], centre, k, wide, a[i], padded)
        for j in range(columns.size):
            _copy_centred(points[columns[j]], centre, k, wide, b[j], padded)
        for extra in (a[rows.size], b[columns.size]):
            extra[:wide].fill(np.inf)
            extra[wide:].fill(0.0)
        for j0 in range(0, minima.shape[1], CACHED_ROWS):
            for i in range(0, minima.shape[0], SIDE):
                for j in range(j0, min(minima.shape[1], j0 + CACHED_ROWS), SIDE):
                    add_minima_tile(a, b, minima, i, j, 0, padded)


@compile_loop
def add_partial_sums(parts: Floats, upper_only: bool, lo: int, hi: int) -> None:
    """Add parts[1:] to parts[0] in rows lo … hi of parts [groups, sides, rows, columns].

    upper_only: skip the columns left of the tile on the diagonal, which hold nothing
    """
    for side in range(parts.shape[1]):
        for i in range(lo, hi):
            total, first = parts[0, side, i], i // SIDE * SIDE if upper_only else 0
            for group in range(1, parts.shape[0]):
                row = parts[group, side, i]
                for j in range(first, total.size):
                    total[j] += row[j]


@compile_loop
def distances_from_minima(minima: Floats, out: Floats) -> None:
    """Fill out [n, n] with distances |a − b| = a + b − 2 min(a, b) from the upper half of minima [n₄, n₄]."""
    for i in range(out.shape[0]):
        out[i, i] = 0.0
        for j in range(i + 1, out.shape[0]):
            out[i, j] = out[j, i] = max(minima[i, i] + minima[j, j] - 2 * minima[i, j], 0.0)


@compile_vector_loop
def add_euclidean_distances(points: Floats, labels: Ints, sums: Floats) -> None:
    """Add the Euclidean distance of each pair i < j of points [n, k] to sums[labels[i], labels[j]] of sums [m, m]."""
    n, k = points.shape
    for i in range(n):
        row, p = sums[labels[i]], points[i]
        for j in range(i + 1, n):
            q = points[j]
            total = 0.0
            for x in range(k):
                total += (p[x] - q[x]) ** 2
            row[labels[j]] += np.sqrt(total)
