"""The loops that numba compiles for Haar transforms: rotations along any axis, with what feeds and sums them."""

from __future__ import annotations

from typing import Any

import numpy as np

from attngeo.arrays import Ints
from attngeo.organization.kernels.l1_simd import LANES, compile_loop, compile_sums, turn_rows

Turn = tuple[Ints, Ints, Any, Any, Ints]  # rows turned together, by which angle, where each row is found then [1, n]

CACHED = 1 << 15  # numbers that fit the second cache beside what else is there
ROWS = 64  # rows turned side by side


@compile_sums
def rotate(flat: Any, out: Any, turn: Turn, lo: int, hi: int) -> None:
    """Rows lo … hi of flat [rows, n], a block at a time so that rotations run over many rows; out may be flat."""
    n, found = flat.shape[1], turn[4]
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
                row[k] = given[k]  # in out's precision
        for x in range(0, even, LANES):
            for k in range(0, whole, LANES):
                turn_rows(part, k, x, block, straight, x, k)
        for x in range(wide):
            for k in range(whole if x < even else 0, n):
                part[k, x] = block[x, k]
        _turn(part, turn, wide)
        target = out[i : i + wide]
        for x in range(0, even, LANES):
            for k in range(0, whole, LANES):
                turn_rows(target, x, k, part, found, k, x)
        for x in range(wide):
            for k in range(whole if x < even else 0, n):
                target[x, k] = part[found[0, k], x]


@compile_sums
def rotate_across(flat: Any, out: Any, turn: Turn, lo: int, hi: int) -> None:
    """Blocks lo … hi of flat [outer, n, inner] along its middle axis, counted through outer; out may be flat."""
    n, inner, found = flat.shape[1], flat.shape[2], turn[4]
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
        _turn(part, turn, wide)
        for k in range(n):
            row = part[found[0, k]]
            for x in range(wide):
                out[i, k, j + x] = row[x]


@compile_sums
def rotate_both(flat: Any, out: Any, turn: Turn, across: Turn, lo: int, hi: int) -> None:
    """Slices lo … hi of flat [outer, m, n] along the last axis and then the middle one."""
    m, n = flat.shape[1], flat.shape[2]
    width = block_width(m, n)
    for i in range(lo, hi):
        rotate(flat[i], out[i], turn, 0, m)
        rotate_across(out[i : i + 1], out[i : i + 1], across, 0, (n + width - 1) // width)


@compile_sums
def _turn(part: Any, turn: Turn, wide: int) -> None:
    """All rotations of part [n, wide], one after another."""
    first, second, cosine, sine, _ = turn
    for k in range(first.size):
        u, v = part[first[k]], part[second[k]]
        c, s = cosine[k], sine[k]
        for x in range(wide):
            a, b = u[x], v[x]
            u[x] = c * a - s * b
            v[x] = s * a + c * b


@compile_loop
def block_width(n: int, inner: int) -> int:
    """Columns of inner taken at a time: enough for whole vectors, few enough for the second cache."""
    return min(inner, max(16, CACHED // n))


@compile_sums
def absolute_sum(numbers: Any) -> float:
    """Σ|x|."""
    total = 0.0
    for x in numbers:
        total += abs(x)
    return total


@compile_loop
def transpose(array: Any, out: Any, lo: int, hi: int) -> None:
    """Rows lo … hi of out [n, m] from array [m, n], in squares that fit the first cache."""
    m = array.shape[0]
    for i0 in range(lo, hi, 32):
        for j0 in range(0, m, 32):
            for i in range(i0, min(hi, i0 + 32)):
                for j in range(j0, min(m, j0 + 32)):
                    out[i, j] = array[j, i]
