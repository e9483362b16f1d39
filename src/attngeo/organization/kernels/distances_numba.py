"""The loops that numba compiles: folder sums, l1 distances. Each call works on its own span and memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from attngeo.arrays import Floats, Ints
from attngeo.organization.kernels.haar_numba import (
    absolute_sum,
    block_width,
    rotate,
    rotate_across,
    rotate_both,
    transpose,
)
from attngeo.organization.kernels.l1_simd import (
    LANES,
    SIDE,
    add_rows,
    compile_loop,
    compile_sums,
    least_tile,
    put_row,
    turn_block,
)

__all__ = [
    "COLUMNS",
    "LANES",
    "absolute_sum",
    "add_up",
    "blend",
    "block_width",
    "distance_sums",
    "folder_sums",
    "from_least",
    "least_between",
    "least_folder_sums",
    "least_within",
    "rotate",
    "rotate_across",
    "rotate_both",
    "transpose",
]

COLUMNS = 512  # coordinates compared at a time
ROWS = 64  # rows of so many coordinates that stay in the second cache


@compile_loop
def folder_sums(
    slices: Any, centre: Floats, sums: Floats, start: Ints, children: Ints, place: Ints, lo: int, hi: int
) -> None:
    """Sums of slices [n, a, b] less their centre [a, b] over folders of the middle axis, [n, folders, b].

    Folder f is the sum of children[start[f]:start[f + 1]], single elements read where they are (c < a) or folders made
    before; `place` says where those stand in sums.
    """
    a, b = slices.shape[1], slices.shape[2]
    for i in range(lo, hi):
        for f in range(start.size - 1):
            total = sums[i, f]
            total.fill(0.0)
            for k in range(start[f], start[f + 1]):
                c = children[k]
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
    start_b: Ints,
    children_b: Ints,
    chosen_b: Ints,
    scale_b: Floats,
    ends_b: Ints,
    means: Floats,
    least: Floats,
) -> None:
    """Add to least [sides, n₄, n₄] (tiles from the diagonal up) Σ min over chosen folders of the middle and last axis.

    The numbers compared are weighted folder means of slices [n, a, b] less their centre, with `sums` as folder_sums
    makes them of the middle axis; `parents_b`, `start_b` and `children_b` [1, …] do the same for the count_b folders of
    the last; `scale`, `scale_b` are weight over size. Side s takes chosen_b[ends_b[s]:ends_b[s + 1]]. n₄ is n rounded
    up to fours, so that every pair goes through the same code and equal slices get equal sums to the last bit.
    `means` [sides, n₄, columns] is memory to work in, with room for LANES columns of every folder of a side.
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
            for k in range(parents_b.size):
                add_rows(totals, parents_b[k], children_b, start_b[k], start_b[k + 1])
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
def _copy_less(row: Floats, centre: Floats, start: int, wide: int, out: Floats, padded: int) -> None:
    """out[:wide] = (row − centre)[start : start + wide], zeros from there to padded."""
    for x in range(wide):
        out[x] = row[start + x] - centre[start + x]
    for x in range(wide, padded):
        out[x] = 0.0


@compile_loop
def least_within(points: Floats, rows: Ints, least: Floats, lo: int, hi: int) -> None:
    """Add to least [n₄, n₄] (tiles from the diagonal up) Σ min over coordinates lo … hi of n chosen points of [·, k].

    All less the first of them: distances do not see a centre, and sums of minima are small without it.
    """
    centre = points[rows[0]]
    block = np.zeros((least.shape[0], COLUMNS))
    for k in range(lo, hi, COLUMNS):
        wide = min(COLUMNS, hi - k)
        padded = (wide + LANES - 1) // LANES * LANES
        for i in range(rows.size):
            _copy_less(points[rows[i]], centre, k, wide, block[i], padded)
        _tiles(block, least, padded)


@compile_loop
def least_between(points: Floats, rows: Ints, columns: Ints, least: Floats, lo: int, hi: int) -> None:
    """Add to least [(rows + 1)₄, (columns + 1)₄] Σ min over coordinates lo … hi of chosen points of [·, k].

    All less the first row. One row and one column more are infinite, and give the sums of the points themselves.
    """
    centre = points[rows[0]]
    a, b = np.zeros((least.shape[0], COLUMNS)), np.zeros((least.shape[1], COLUMNS))
    for k in range(lo, hi, COLUMNS):
        wide = min(COLUMNS, hi - k)
        padded = (wide + LANES - 1) // LANES * LANES
        for i in range(rows.size):
            _copy_less(points[rows[i]], centre, k, wide, a[i], padded)
        for j in range(columns.size):
            _copy_less(points[columns[j]], centre, k, wide, b[j], padded)
        for end in (a[rows.size], b[columns.size]):
            end[:wide].fill(np.inf)
            end[wide:].fill(0.0)
        for j0 in range(0, least.shape[1], ROWS):
            for i in range(0, least.shape[0], SIDE):
                for j in range(j0, min(least.shape[1], j0 + ROWS), SIDE):
                    least_tile(a, b, least, i, j, 0, padded)


@compile_loop
def add_up(parts: Floats, half: bool, lo: int, hi: int) -> None:
    """parts[0] += the others, rows lo … hi of [groups, sides, rows, columns], from the diagonal up where `half`."""
    for side in range(parts.shape[1]):
        for i in range(lo, hi):
            total, first = parts[0, side, i], i // SIDE * SIDE if half else 0
            for group in range(1, parts.shape[0]):
                row = parts[group, side, i]
                for j in range(first, total.size):
                    total[j] += row[j]


@compile_loop
def from_least(least: Floats, out: Floats) -> None:
    """|a − b| = a + b − 2 min(a, b): distances [n, n] from sums of minima [n₄, n₄], filled from the diagonal up.

    Two operations a number instead of three. What cancels is small when the points are centred.
    """
    for i in range(out.shape[0]):
        out[i, i] = 0.0
        for j in range(i + 1, out.shape[0]):
            out[i, j] = out[j, i] = max(least[i, i] + least[j, j] - 2 * least[i, j], 0.0)


@compile_loop
def blend(points: Floats, into: Ints, share: Floats, start: Ints, rows: Ints, lo: int, hi: int) -> None:
    """points[into[g]] = Σ share[k] · points[rows[k]], k from start[g] to start[g + 1]; coordinates lo … hi."""
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
