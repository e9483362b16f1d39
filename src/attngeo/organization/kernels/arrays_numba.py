"""CPU loops on plain arrays, compiled with numba: a transpose, Σ|x|, and weighted means of rows.

Each call works on the span lo … hi, so that threads can divide an array among them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import Floats, Ints
from attngeo.organization.kernels.numba_compile import compile_loop, compile_vector_loop

SQUARE = 32  # side of the blocks of `transpose`: one block of each array fits the first-level cache


@compile_loop
def transpose(array: NDArray[np.floating], out: NDArray[np.floating], lo: int, hi: int) -> None:
    """Fill rows lo … hi of out [n, m] with the transpose of array [m, n].

    One of the two arrays must be read or written with a stride; going block by block keeps its cache lines in use.
    """
    m = array.shape[0]
    for i0 in range(lo, hi, SQUARE):
        for j0 in range(0, m, SQUARE):
            for i in range(i0, min(hi, i0 + SQUARE)):
                for j in range(j0, min(m, j0 + SQUARE)):
                    out[i, j] = array[j, i]


@compile_vector_loop
def absolute_sum(numbers: NDArray[np.floating]) -> float:
    """Return Σ|x| over numbers [k]; unlike np.abs(numbers).sum() it allocates no second array."""
    total = 0.0
    for x in numbers:
        total += abs(x)
    return total


@compile_loop
def average_rows(points: Floats, into: Ints, share: Floats, start: Ints, rows: Ints, lo: int, hi: int) -> None:
    """Set points[into[g]] = Σ_k share[k] · points[rows[k]] for every group g, in columns lo … hi of points [n, c].

    The rows of group g are rows[start[g]:start[g + 1]]; into[g] is the first of them, so the mean replaces it.
    """
    for g in range(into.size):
        total = points[into[g], lo:hi]
        for k in range(start[g], start[g + 1]):
            row, part = points[rows[k], lo:hi], share[k]
            if k == start[g]:
                for x in range(hi - lo):
                    total[x] = part * row[x]
            else:
                for x in range(hi - lo):
                    total[x] += part * row[x]
