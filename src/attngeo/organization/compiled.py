"""The loops that numba compiles: rotations, folder sums, l1 distances. Each call works on its own span and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

from attngeo.organization.arrays import Floats, Ints
from attngeo.organization.lanes import LANES, SIDE, add_row, least_tile, put_row, turn_block, turn_rows

Turn = tuple[Ints, Ints, Any, Any, Ints]  # rows turned together, by which angle, where each row is found then [1, n]
Loop = TypeVar("Loop", bound=Callable[..., Any])

CACHED = 1 << 15  # numbers that fit the second cache beside what else is there
COLUMNS = 512  # coordinates compared at a time
ROWS = 64  # rows of so many coordinates that stay in the second cache


def compile_loop(loop: Loop) -> Loop:
    """Compiled on first use, kept on disk, free of the GIL, sums in the order written."""
    return cast(Loop, numba.njit(nogil=True, cache=True)(loop))


def compile_sums(loop: Loop) -> Loop:
    """As compile_loop, but sums may be taken in vector lanes: fixed by the code, so the same on every run."""
    return cast(Loop, numba.njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "contract"})(loop))


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


@compile_loop
def folder_sums(
    slices: Any, centre: Floats, sums: Floats, parents: Ints, children: Ints, place: Ints, lo: int, hi: int
) -> None:
    """Sums of slices [n, a, b] less their centre [a, b] over folders of the middle axis, [n, folders, b].

    Every child is added to its parent, children's own children before; `place` says where a folder stands in sums.
    Single elements are read where they are, never copied.
    """
    a, b = slices.shape[1], slices.shape[2]
    for i in range(lo, hi):
        sums[i].fill(0.0)
        for k in range(parents.size):
            total, c = sums[i, place[parents[k]]], children[k]
            if c < a:
                row, middle = slices[i, c], centre[c]
                for x in range(b):
                    total[x] += row[x] - middle[x]
            else:
                part = sums[i, place[c]]
                for x in range(b):
                    total[x] += part[x]


@compile_loop
def least_folder_sums(
    slices: Any,
    centre: Floats,
    sums: Floats,
    place: Ints,
    chosen: Ints,
    scale: Floats,
    count_b: int,
    parents_b: Ints,
    children_b: Ints,
    chosen_b: Ints,
    scale_b: Floats,
    ends_b: Ints,
    means: Floats,
    least: Floats,
) -> None:
    """Add to least [sides, n₄, n₄] (tiles from the diagonal up) Σ min over chosen folders of the middle and last axis.

    The numbers compared are weighted folder means of slices [n, a, b] less their centre, with `sums` as folder_sums
    makes them of the middle axis; `parents_b`, `children_b` do the same for the last, which has count_b folders;
    `scale`, `scale_b` are weight over size. Side s takes chosen_b[ends_b[s]:ends_b[s + 1]]. n₄ is n rounded up to
    fours, so that every pair goes through the same code and equal slices get equal sums to the last bit. `means`
    [sides, n₄, columns] is memory to work in, with room for LANES columns of every folder of a side.
    """
    n, a, b = slices.shape
    sides = ends_b.size - 1
    for s in range(sides):
        for i in range(n, least.shape[1]):
            means[s, i].fill(0.0)
    filled = np.zeros(sides, np.int64)
    totals = np.zeros((count_b, LANES))  # LANES folders of the middle axis side by side
    weights = np.zeros((1, LANES))
    nowhere = np.zeros((sums.shape[1], b))
    for f0 in range(0, chosen.size, LANES):
        wide = min(LANES, chosen.size - f0)
        if wide < LANES:
            weights.fill(0.0)
            totals.fill(0.0)
        for w in range(wide):
            weights[0, w] = scale[f0 + w]
        first, last = chosen[f0], chosen[f0 + wide - 1]
        single, several = last < a, first >= a
        start = first if single else place[first]
        straight = wide == LANES and (single or several) and (last if single else place[last]) - start == LANES - 1
        whole = b // LANES * LANES if straight else 0
        for i in range(n):
            mine, added = slices[i], sums[i]
            if single:
                for x in range(0, whole, LANES):
                    turn_block(totals, x, mine, centre, start, x, weights)
            else:
                for x in range(0, whole, LANES):
                    turn_block(totals, x, added, nowhere, start, x, weights)
            for w in range(wide):
                f, weight = chosen[f0 + w], weights[0, w]
                for x in range(whole, b):
                    totals[x, w] = (mine[f, x] - centre[f, x] if f < a else added[place[f], x]) * weight
            totals[b:].fill(0.0)
            for k in range(parents_b.size):
                add_row(totals, parents_b[k], children_b[k])
            for s in range(sides):
                out, offset = means[s], filled[s] - LANES * ends_b[s]
                for k in range(ends_b[s], ends_b[s + 1]):
                    put_row(out, i, offset + k * LANES, totals, chosen_b[k], scale_b[k])
        for s in range(sides):
            more = LANES * (ends_b[s + 1] - ends_b[s])
            filled[s] += more
            if filled[s] + more > means.shape[2] or f0 + LANES >= chosen.size:
                _tiles(means[s], least[s], filled[s])
                filled[s] = 0


@compile_loop
def _tiles(points: Floats, least: Floats, length: int) -> None:
    """All tiles from the diagonal up, over the first `length` coordinates of points."""
    n = least.shape[0]
    for k in range(0, length, COLUMNS):
        wide = min(COLUMNS, length - k)
        for j0 in range(0, n, ROWS):
            j1 = min(n, j0 + ROWS)
            for i in range(0, j1, SIDE):
                for j in range(max(i, j0), j1, SIDE):
                    least_tile(points, points, least, i, j, k, wide)


@compile_loop
def _copy(row: Floats, start: int, wide: int, out: Floats, padded: int) -> None:
    """out[:wide] = row[start : start + wide], zeros from there to padded."""
    for x in range(wide):
        out[x] = row[start + x]
    for x in range(wide, padded):
        out[x] = 0.0


@compile_loop
def least_within(points: Floats, least: Floats, lo: int, hi: int) -> None:
    """Add to least [n₄, n₄] (tiles from the diagonal up) Σ min over coordinates lo … hi of points [n, k]."""
    n = points.shape[0]
    block = np.zeros((least.shape[0], COLUMNS))
    for k in range(lo, hi, COLUMNS):
        wide = min(COLUMNS, hi - k)
        padded = (wide + LANES - 1) // LANES * LANES
        for i in range(n):
            _copy(points[i], k, wide, block[i], padded)
        _tiles(block, least, padded)


@compile_loop
def least_between(points: Floats, rows: Ints, columns: Ints, least: Floats, lo: int, hi: int) -> None:
    """Add to least [(rows + 1)₄, (columns + 1)₄] Σ min over coordinates lo … hi of chosen points of [n, k].

    The one row and the one column more are compared with infinity: they hold the sums of the points themselves.
    """
    a, b = np.zeros((least.shape[0], COLUMNS)), np.zeros((least.shape[1], COLUMNS))
    infinite = np.full(COLUMNS, np.inf)
    for k in range(lo, hi, COLUMNS):
        wide = min(COLUMNS, hi - k)
        padded = (wide + LANES - 1) // LANES * LANES
        for i in range(rows.size):
            _copy(points[rows[i]], k, wide, a[i], padded)
        for j in range(columns.size):
            _copy(points[columns[j]], k, wide, b[j], padded)
        _copy(infinite, 0, wide, a[rows.size], padded)
        _copy(infinite, 0, wide, b[columns.size], padded)
        for j0 in range(0, least.shape[1], ROWS):
            for i in range(0, least.shape[0], SIDE):
                for j in range(j0, min(least.shape[1], j0 + ROWS), SIDE):
                    least_tile(a, b, least, i, j, 0, padded)


@compile_sums
def absolute_sum(numbers: Any) -> float:
    """Σ|x|."""
    total = 0.0
    for x in numbers:
        total += abs(x)
    return total


@compile_sums
def distance_sums(points: Floats, labels: Ints, sums: Floats) -> None:
    """Add the Euclidean distance of every pair i < j of points [n, k] to sums [m, m] at their labels, once."""
    n, k = points.shape
    for i in range(n):
        row, p = sums[labels[i]], points[i]
        for j in range(i + 1, n):
            q = points[j]
            total = 0.0
            for x in range(k):
                total += (p[x] - q[x]) ** 2
            row[labels[j]] += np.sqrt(total)


@compile_loop
def transpose(array: Any, out: Any, lo: int, hi: int) -> None:
    """Rows lo … hi of out [n, m] from array [m, n], in squares that fit the first cache."""
    m = array.shape[0]
    for i0 in range(lo, hi, 32):
        for j0 in range(0, m, 32):
            for i in range(i0, min(hi, i0 + 32)):
                for j in range(j0, min(m, j0 + 32)):
                    out[i, j] = array[j, i]
