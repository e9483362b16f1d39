"""CPU loops for the tree distance, compiled with numba: sums of slices over folders, and their sums of minima.

The tree distance compares all slices in one coordinate per pair of folders (F₁, F₂). These loops never store all the
coordinates: they compute a few of them, compare the slices in those (`add_minima_tiles`), and reuse the memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import Floats, Ints
from attngeo.organization.kernels.distances_numba import add_minima_tiles
from attngeo.organization.kernels.numba_compile import compile_loop
from attngeo.organization.kernels.simd_llvm import LANES, store_scaled_row, sum_rows, transpose_scaled_difference


@compile_loop
def folder_sums(
    slices: NDArray[Any], centre: Floats, sums: Floats, start: Ints, children: Ints, row_of: Ints, lo: int, hi: int
) -> None:
    """Fill sums [n, folders, b] with sums of (slices − centre) over folders of the middle axis, for slices lo … hi.

    slices:   [n, a, b]
    centre:   [a, b], subtracted from each slice
    children: folder f is the sum of children[start[f]:start[f + 1]]; a child c < a is a single element of the middle
              axis, any other is a folder computed before
    row_of:    [folders of the tree], row of `sums` that holds a folder
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
                    part = sums[i, row_of[c]]
                    for x in range(b):
                        total[x] += part[x]


@compile_loop
def folder_minima(
    slices: NDArray[Any],
    centre: Floats,
    sums: Floats,
    row_of: Ints,
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
    minima: Floats,
) -> None:
    """Add to minima [sides, n₄, n₄] the sums of minima of slices over pairs of folders (F₁, F₂).

    The numbers compared are weighted means of (slices − centre) over F₁ × F₂. A "side" is one set of folders F₂.
    Tiles below the diagonal are left out; n₄ is n rounded up to a multiple of four.

    slices, centre, sums, row_of: as in `folder_sums`
    chosen, scale:      the folders F₁ of the middle axis, and weight / size of each
    count_b:            number of folders of the last axis, single elements first
    parents_b, start_b, children_b [1, ·]: the folder parents_b[k] is the sum of children_b[0, start_b[k]:start_b[k+1]]
    chosen_b, scale_b:  the folders F₂ of all sides one after another, and weight / size of each
    ends_b [sides + 1]: side s has the folders chosen_b[ends_b[s]:ends_b[s + 1]]
    means [sides, n₄, columns]: working memory with room for LANES columns per folder of a side

    LANES folders F₁ are handled together. Their sums for one slice are transposed into totals [count_b, LANES], one
    row per element of the last axis and one vector lane per F₁. Adding rows then gives the folders F₂ for all LANES
    folders F₁ at once, with one vector instruction per addition.
    """
    n, a, b = slices.shape
    sides = ends_b.size - 1
    for s in range(sides):
        for i in range(n, minima.shape[1]):
            means[s, i].fill(0.0)
    filled = np.zeros(sides, np.int64)  # columns of `means` in use
    totals = np.zeros((count_b, LANES))
    weights = np.zeros((1, LANES))
    no_centre = np.zeros((sums.shape[1], b))  # the centre is already subtracted from `sums`
    for f0 in range(0, chosen.size, LANES):
        wide = min(LANES, chosen.size - f0)
        if wide < LANES:
            weights.fill(0.0)
            totals.fill(0.0)
        for w in range(wide):
            weights[0, w] = scale[f0 + w]
        first, last = chosen[f0], chosen[f0 + wide - 1]
        single, several = last < a, first >= a  # all F₁ are single elements; all are larger folders
        start = first if single else row_of[first]
        # Rows that follow one another in memory are transposed in vector registers, any others number by number.
        adjacent = wide == LANES and (single or several) and (last if single else row_of[last]) - start == LANES - 1
        whole = b // LANES * LANES if adjacent else 0
        for i in range(n):
            slice_i, sums_i = slices[i], sums[i]
            if single:
                for x in range(0, whole, LANES):
                    transpose_scaled_difference(totals, x, slice_i, centre, start, x, weights)
            else:
                for x in range(0, whole, LANES):
                    transpose_scaled_difference(totals, x, sums_i, no_centre, start, x, weights)
            for w in range(wide):
                f, weight = chosen[f0 + w], weights[0, w]
                for x in range(whole, b):
                    totals[x, w] = (slice_i[f, x] - centre[f, x] if f < a else sums_i[row_of[f], x]) * weight
            for k in range(parents_b.size):
                sum_rows(totals, parents_b[k], children_b, start_b[k], start_b[k + 1])
            for s in range(sides):
                out, offset = means[s], filled[s] - LANES * ends_b[s]
                for k in range(ends_b[s], ends_b[s + 1]):
                    store_scaled_row(out, i, offset + k * LANES, totals, chosen_b[k], scale_b[k])
        for s in range(sides):
            more = LANES * (ends_b[s + 1] - ends_b[s])
            filled[s] += more
            if filled[s] + more > means.shape[2] or f0 + LANES >= chosen.size:
                add_minima_tiles(means[s], minima[s], filled[s])
                filled[s] = 0
