"""The loops that take nearly all the time of organising on a CPU, compiled with numba.

Sums of minima. |a − b| = a + b − 2 min(a, b), and a sum of minima takes two operations per coordinate where a sum of
absolute differences takes three. The loops therefore collect

    minima[i, j] = Σ_k min(x_ik, y_jk)

in tiles of SIDE × SIDE pairs, whose running sums stay in registers. Every pair goes through the same code, so equal
points get equal sums to the last bit; matrices of sums are padded to a multiple of SIDE for that ("padded" below).
Distances do not depend on the origin, so a centre is subtracted from all points: the sums are then small and little
cancels.

The loops run without the GIL on a span lo … hi, so that threads can divide the work. Sums may be taken in vector lanes;
their order is fixed by the compiled code, so results are the same on every run of one machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import Floats, Ints

Loop = TypeVar("Loop", bound=Callable[..., Any])
Numbers: TypeAlias = NDArray[Any]  # float32 or float64
# As `Rotations.steps` returns them: the two rows of each rotation, its cosine and sine, and the row of the buffer that
# holds each row of the result.
RotationSteps: TypeAlias = tuple[Ints, Ints, Numbers, Numbers, Ints]

SIDE = 4  # rows and columns of a tile: 16 running sums and 8 operands fit the registers
COORDINATES = 512  # coordinates per pass over the tiles
CACHED_ROWS = 32  # rows of that length that stay in the cache while all others are compared with them
FOLDERS = 8  # folders whose means are computed side by side
LANES = 32  # numbers that the compiled code adds together
CACHED = 1 << 15  # numbers of a buffer that fits the second-level cache beside the data streamed through it


def compiled(loop: Loop) -> Loop:
    """Compile a loop on first use; the machine code is cached on disk."""
    return cast(Loop, numba.njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "contract"})(loop))


@compiled
def _add_minima(left: Floats, right: Floats, minima: Floats, length: int, upper: bool) -> None:
    """Add Σ min over the first `length` coordinates of left [n, ·] and right [m, ·] to minima [n, m], both padded.

    upper: leave out the tiles below the diagonal
    """
    for begin in range(0, length, COORDINATES):
        end = min(length, begin + COORDINATES)
        for j0 in range(0, minima.shape[1], CACHED_ROWS):
            j1 = min(minima.shape[1], j0 + CACHED_ROWS)
            for i in range(0, j1 if upper else minima.shape[0], SIDE):
                for j in range(max(i, j0) if upper else j0, j1, SIDE):
                    _add_tile(left, right, minima, i, j, begin, end)


@compiled
def _add_tile(left: Floats, right: Floats, minima: Floats, i: int, j: int, lo: int, hi: int) -> None:
    """Add Σ min over coordinates lo … hi of 4 × 4 pairs of rows; each number that is loaded is used four times."""
    a0, a1, a2, a3 = left[i, lo:hi], left[i + 1, lo:hi], left[i + 2, lo:hi], left[i + 3, lo:hi]
    b0, b1, b2, b3 = right[j, lo:hi], right[j + 1, lo:hi], right[j + 2, lo:hi], right[j + 3, lo:hi]
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = 0.0
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = 0.0
    for k in range(a0.size):
        s00 += min(a0[k], b0[k])
        s01 += min(a0[k], b1[k])
        s02 += min(a0[k], b2[k])
        s03 += min(a0[k], b3[k])
        s10 += min(a1[k], b0[k])
        s11 += min(a1[k], b1[k])
        s12 += min(a1[k], b2[k])
        s13 += min(a1[k], b3[k])
        s20 += min(a2[k], b0[k])
        s21 += min(a2[k], b1[k])
        s22 += min(a2[k], b2[k])
        s23 += min(a2[k], b3[k])
        s30 += min(a3[k], b0[k])
        s31 += min(a3[k], b1[k])
        s32 += min(a3[k], b2[k])
        s33 += min(a3[k], b3[k])
    sums = ((s00, s01, s02, s03), (s10, s11, s12, s13), (s20, s21, s22, s23), (s30, s31, s32, s33))
    for u in range(SIDE):
        for v in range(SIDE):
            minima[i + u, j + v] += sums[u][v]


@compiled
def point_minima(points: Floats, rows: Ints, columns: Ints, minima: Floats, upper: bool, lo: int, hi: int) -> None:
    """Add Σ min over coordinates lo … hi of two choices of points [·, k] to minima [rows + 1, columns + 1], padded.

    The first row is the centre. One more row and one more column are infinite: a minimum with infinity is the number
    itself, so they collect the sums Σ_k x_ik that the distances need.
    """
    centre = points[rows[0]]
    left, right = np.zeros((minima.shape[0], COORDINATES)), np.zeros((minima.shape[1], COORDINATES))
    left[rows.size].fill(np.inf)
    right[columns.size].fill(np.inf)
    for k in range(lo, hi, COORDINATES):
        wide = min(COORDINATES, hi - k)
        for chosen, block in ((rows, left), (columns, right)):
            for i in range(chosen.size):
                given, out = points[chosen[i]], block[i]
                for x in range(wide):
                    out[x] = given[k + x] - centre[k + x]
        _add_minima(left, right, minima, wide, upper)


@compiled
def folder_sums(slices: Numbers, centre: Floats, start: Ints, child: Ints, sums: Floats, lo: int, hi: int) -> None:
    """Fill sums [n, folders − a, b] with sums of (slices − centre) over folders of the middle axis, for slices lo … hi.

    slices:       [n, a, b]
    centre:       [a, b]
    start, child: of the folders of the middle axis, as in `Folders`; the first a of them are single elements
    """
    a, b = slices.shape[1], slices.shape[2]
    for i in range(lo, hi):
        for f in range(a, start.size - 1):
            total = sums[i, f - a]
            total.fill(0.0)
            for c in child[start[f] : start[f + 1]]:
                if c < a:
                    row, middle = slices[i, c], centre[c]
                    for x in range(b):
                        total[x] += row[x] - middle[x]
                else:
                    part = sums[i, c - a]
                    for x in range(b):
                        total[x] += part[x]


@compiled
def folder_minima(
    slices: Numbers,
    centre: Floats,
    sums: Floats,
    chosen: Ints,
    scale: Floats,
    start: Ints,
    child: Ints,
    chosen_b: Ints,
    scale_b: Floats,
    minima: Floats,
    lo: int,
    hi: int,
) -> None:
    """Add to minima [n, n], padded, the sums of minima of slices over pairs of folders (F₁, F₂), from the diagonal up.

    slices, centre, sums: as in `folder_sums`
    chosen, scale:        folders F₁ of the middle axis, in blocks of FOLDERS; weight / size of every folder
    start, child:         of the folders of the last axis
    chosen_b, scale_b:    the folders F₂ of the last axis; weight / size of every folder

    The numbers compared are weighted means of (slices − centre) over F₁ × F₂. They are never stored all at once: those
    of a block are computed, the slices are compared in them, and the memory is used again.
    """
    n, a, b = slices.shape
    count, last = chosen_b.size, chosen_b[-1]
    wide = -(-FOLDERS * count // LANES) * LANES  # numbers that do not fill the vectors would be added one by one
    means = np.zeros((minima.shape[0], wide))
    for block in range(lo, hi):
        together = chosen[block * FOLDERS : (block + 1) * FOLDERS]
        totals = np.zeros((max(b, last + 1), FOLDERS))
        for i in range(n):
            for k in range(together.size):
                f = together[k]
                if f < a:
                    for x in range(b):
                        totals[x, k] = scale[f] * (slices[i, f, x] - centre[f, x])
                else:
                    for x in range(b):
                        totals[x, k] = scale[f] * sums[i, f - a, x]
            for g in range(b, last + 1):
                totals[g] = 0.0
                for c in child[start[g] : start[g + 1]]:
                    for k in range(FOLDERS):
                        totals[g, k] += totals[c, k]
            for x in range(count):
                g = chosen_b[x]
                for k in range(FOLDERS):
                    means[i, x * FOLDERS + k] = scale_b[g] * totals[g, k]
        _add_minima(means, means, minima, wide, True)


@compiled
def block_width(n: int) -> int:
    """Return how many columns `rotate` transforms together: enough to fill vectors, few enough for the cache."""
    return max(16, CACHED // n)


@compiled
def rotate(flat: Numbers, out: Numbers, steps: RotationSteps, lo: int, hi: int) -> None:
    """Transform blocks lo … hi of flat [outer, n, inner] along the middle axis by plane rotations.

    A rotation combines two rows element by element, which is fast when many columns lie side by side in memory. So a
    block of `block_width(n)` columns, counted along `inner` first and then along `outer`, is copied into a buffer that
    fits the cache, all n − 1 rotations are applied there, and the block is written in the order of the coefficients.
    `out` may be the input itself.
    """
    outer, n, inner = flat.shape
    first, second, cosine, sine, source = steps
    width = block_width(n)
    part = np.empty((n, width + 16), out.dtype)  # a row of a power of 2 would fill few sets of the cache
    for block in range(lo, hi):
        begin, end = block * width, min((block + 1) * width, outer * inner)
        _copy_columns(flat, part, source, begin, end, False)
        for k in range(first.size):
            u, v = part[first[k]], part[second[k]]
            c, s = cosine[k], sine[k]
            for x in range(end - begin):
                a, b = u[x], v[x]
                u[x] = c * a - s * b
                v[x] = s * a + c * b
        _copy_columns(out, part, source, begin, end, True)


@compiled
def _copy_columns(flat: Numbers, part: Numbers, source: Ints, begin: int, end: int, back: bool) -> None:
    """Copy columns begin … end of flat [outer, n, inner] to part [n, width], or back from its rows `source`."""
    n, inner = flat.shape[1], flat.shape[2]
    if inner == 1:
        for i in range(begin, end):
            for k in range(n):
                if back:
                    flat[i, k, 0] = part[source[k], i - begin]
                else:
                    part[k, i - begin] = flat[i, k, 0]
        return
    column = begin
    while column < end:
        i, j = column // inner, column % inner
        wide, at = min(inner - j, end - column), column - begin
        for k in range(n):
            if back:
                for x in range(wide):
                    flat[i, k, j + x] = part[source[k], at + x]
            else:
                for x in range(wide):
                    part[k, at + x] = flat[i, k, j + x]
        column += wide
