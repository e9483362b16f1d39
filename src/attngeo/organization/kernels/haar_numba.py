"""CPU loops for the Haar transform, compiled with numba: plane rotations along the last, the middle or both axes.

A rotation combines two rows element by element. It runs fast when many columns lie side by side in memory, so each
loop copies a block into a small buffer [n, columns] that fits the cache, applies all n − 1 rotations there, and writes
the block back in the order of the coefficients. `out` may be the input array itself.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import Ints
from attngeo.organization.kernels.numba_compile import compile_loop, compile_vector_loop
from attngeo.organization.kernels.simd_llvm import LANES, transpose_gathered

Numbers: TypeAlias = NDArray[Any]  # float32 or float64

# As `Rotations.steps` returns them: the two rows of each rotation, its cosine and sine, and for each row of the result
# the row of the buffer that holds it, [1, n].
RotationSteps: TypeAlias = tuple[Ints, Ints, Numbers, Numbers, Ints]

CACHED = 1 << 15  # numbers of a buffer that fits the second-level cache beside the data streamed through it
ROWS = 64  # rows of `rotate_last_axis` that are transformed together


@compile_vector_loop
def rotate_last_axis(flat: Numbers, out: Numbers, steps: RotationSteps, lo: int, hi: int) -> None:
    """Transform rows lo … hi of flat [rows, n] along the last axis.

    The elements to rotate are neighbours in memory here, not rows. So ROWS rows at a time are transposed into the
    buffer, in blocks of LANES × LANES inside vector registers, and transposed again on the way out.
    """
    n, source = flat.shape[1], steps[4]
    part = np.empty((n, ROWS), out.dtype)
    block = np.empty((ROWS, n), out.dtype)
    straight = np.arange(ROWS).reshape(1, ROWS)
    whole = n // LANES * LANES
    for i in range(lo, hi, ROWS):
        wide = min(ROWS, hi - i)
        even = wide // LANES * LANES
        for x in range(wide):
            row, given = block[x], flat[i + x]
            for k in range(n):
                row[k] = given[k]  # converted to the precision of `out`
        for x in range(0, even, LANES):
            for k in range(0, whole, LANES):
                transpose_gathered(part, k, x, block, straight, x, k)
        for x in range(wide):  # what does not fill a block
            for k in range(whole if x < even else 0, n):
                part[k, x] = block[x, k]
        _apply_rotations(part, steps, wide)
        target = out[i : i + wide]
        for x in range(0, even, LANES):
            for k in range(0, whole, LANES):
                transpose_gathered(target, x, k, part, source, k, x)
        for x in range(wide):
            for k in range(whole if x < even else 0, n):
                target[x, k] = part[source[0, k], x]


@compile_vector_loop
def rotate_middle_axis(flat: Numbers, out: Numbers, steps: RotationSteps, lo: int, hi: int) -> None:
    """Transform blocks lo … hi of flat [outer, n, inner] along the middle axis.

    A block is [n, block_width(n, inner)]; blocks are numbered along `inner` first, then along `outer`.
    """
    n, inner, source = flat.shape[1], flat.shape[2], steps[4]
    width = block_width(n, inner)
    blocks = (inner + width - 1) // width
    part = np.empty((n, width), out.dtype)
    for task in range(lo, hi):
        i, j = task // blocks, task % blocks * width
        wide = min(width, inner - j)
        for k in range(n):
            row = part[k]
            for x in range(wide):
                row[x] = flat[i, k, j + x]
        _apply_rotations(part, steps, wide)
        for k in range(n):
            row = part[source[0, k]]
            for x in range(wide):
                out[i, k, j + x] = row[x]


@compile_vector_loop
def rotate_last_two_axes(
    flat: Numbers, out: Numbers, last: RotationSteps, middle: RotationSteps, lo: int, hi: int
) -> None:
    """Transform slices lo … hi of flat [outer, m, n] along the last and then the middle axis, while each is cached."""
    m, n = flat.shape[1], flat.shape[2]
    width = block_width(m, n)
    for i in range(lo, hi):
        rotate_last_axis(flat[i], out[i], last, 0, m)
        rotate_middle_axis(out[i : i + 1], out[i : i + 1], middle, 0, (n + width - 1) // width)


@compile_vector_loop
def _apply_rotations(part: Numbers, steps: RotationSteps, wide: int) -> None:
    """Apply all rotations, one after another, to the first `wide` columns of part [n, columns]."""
    first, second, cosine, sine, _ = steps
    for k in range(first.size):
        u, v = part[first[k]], part[second[k]]
        c, s = cosine[k], sine[k]
        for x in range(wide):
            a, b = u[x], v[x]
            u[x] = c * a - s * b
            v[x] = s * a + c * b


@compile_loop
def block_width(n: int, inner: int) -> int:
    """Return how many columns to transform together: enough to fill vectors, few enough for the second-level cache."""
    return min(inner, max(16, CACHED // n))
