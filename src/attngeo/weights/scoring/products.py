"""Matrix products and sums, divided among the cores, with sums in float64 where the precision of a score needs it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from attngeo.arrays import AnyFloats, Floats
from attngeo.io.threads import each, spans

BLOCK = 256  # rows of a Gram matrix multiplied at once: wide enough for BLAS, and half the blocks can be left out
GRAM_BLOCK = 512  # rows of a factor multiplied at once to make a Gram matrix
NARROW_BLOCK = 64  # the same where a Gram matrix is no wider than BLOCK
TILE = 64  # side of the tiles of M whose entries are added up at once
LANES = 16  # terms added in the precision of the factors before the float64 sum takes over

_of_thread = threading.local()


def product(a: AnyFloats, b: AnyFloats) -> AnyFloats:
    """Return a @ b, `[m, n]`, the rows of a `[m, k]` divided among the cores."""
    (m, k), n = a.shape, b.shape[1]
    out = _matrix(m, n, a.dtype)
    each(lambda rows: np.matmul(a[rows], b, out=out[rows]), spans(m, m * n * k), m * n * k)
    return out


def symmetric_product(w: AnyFloats) -> AnyFloats:
    """Return w @ w.T, `[r, r]`, block by block; each pair of blocks of w `[r, d]` is multiplied once."""
    r, d = w.shape
    out = _matrix(r, r, w.dtype)
    blocks = [slice(i, i + GRAM_BLOCK) for i in range(0, r, GRAM_BLOCK)]

    def multiply(pair: tuple[slice, slice]) -> None:
        np.matmul(w[pair[0]], w[pair[1]].T, out=out[pair])
        if pair[0] != pair[1]:
            out[pair[1], pair[0]] = out[pair].T

    each(multiply, [(a, b) for i, a in enumerate(blocks) for b in blocks[i:]], GRAM_BLOCK**2 * d)
    return out


def _matrix(rows: int, columns: int, dtype: np.dtype[Any]) -> AnyFloats:
    """Return memory for a matrix."""
    return np.empty((rows, _row_length(columns, dtype)), dtype)[:, :columns]


def _row_length(columns: int, dtype: np.dtype[Any]) -> int:
    """Return how far apart rows are to be, so that entries of one column do not all compete for one part of the cache.

    They would if rows were a multiple of 4096 bytes apart; reading the transpose would then take four times as long.
    """
    return columns + (64 // dtype.itemsize if columns * dtype.itemsize % 4096 == 0 else 0)


def quadratic_forms(gram: AnyFloats, w: AnyFloats) -> Floats:
    """Return w_jᵀ G w_j for each G of `gram` `[n, r, r]` and each column w_j of w `[r, d]`, as `[n, d]`.

    The sums are in float64. G is symmetric, so only its blocks on and right of the diagonal are multiplied, and those
    right of it count twice.
    """
    n, r, _ = gram.shape
    block = NARROW_BLOCK if r <= BLOCK else BLOCK
    upper_blocks = []
    for i in range(0, r, block):
        upper = gram[:, i : i + block, i:].copy()  # [n, b, r - i]
        upper[:, :, block:] *= 2
        upper_blocks.append(upper)

    def of_columns(columns: slice) -> Floats:
        some = w[:, columns]  # [r, c]
        total = np.zeros((n, some.shape[1]))  # [n, c]
        for i, upper in zip(range(0, r, block), upper_blocks, strict=True):
            b = upper.shape[1]
            out = _scratch((n * b, some.shape[1]), w.dtype)
            multiplied = np.matmul(upper.reshape(n * b, r - i), some[i:], out=out).reshape(n, b, -1)  # [n, b, c]
            for j in range(0, b, LANES):
                lanes = some[i + j : i + j + LANES]  # [LANES, c]
                for m in range(n):
                    total[m] += np.einsum("rd,rd->d", multiplied[m, j : j + LANES], lanes)
        return total

    work = n * r * r * w.shape[1]
    parts = each(of_columns, spans(w.shape[1], work), work)
    return np.maximum(np.concatenate(parts, axis=1), 0.0)


def _scratch(shape: tuple[int, int], dtype: np.dtype[Any]) -> AnyFloats:
    """Return memory of this thread, to be used until its next call: new memory would cost as much as the product."""
    rows, columns = shape
    length = _row_length(columns, dtype)
    size = rows * length * dtype.itemsize
    buffer = getattr(_of_thread, "buffer", None)
    if buffer is None or len(buffer) < size:
        buffer = _of_thread.buffer = np.empty(size, np.uint8)
    return buffer[:size].view(dtype).reshape(rows, length)[:, :columns]


def weighted_squares(w: AnyFloats, weights: AnyFloats) -> Floats:
    """Return Σ_a weights_na w_aj² for weights `[n, r]` and each column j of w `[r, d]`, as `[n, d]`.

    The sums are in float64.
    """
    total = np.zeros((len(weights), w.shape[1]))
    weights = weights.astype(w.dtype)
    for i in range(0, len(w), LANES):
        total += weights[:, i : i + LANES] @ np.square(w[i : i + LANES])
    return total


def squared_row_norms(matrix: AnyFloats) -> Floats:
    """Return the squared norms of the rows of a matrix, with sums in float64."""
    total = np.zeros(len(matrix))
    for j in range(0, matrix.shape[1], TILE):
        tile = matrix[:, j : j + TILE]
        total += np.einsum("ij,ij->i", tile, tile)
    return total


def tiled_trace_of_square(matrix: AnyFloats) -> float:
    """Return tr(A A) of a square matrix, tile by tile: a whole transpose would miss the cache at every entry."""
    starts = range(0, len(matrix), TILE)
    tiles = ((slice(i, i + TILE), slice(j, j + TILE)) for i in starts for j in starts)
    return sum(inner_product(matrix[rows, columns], matrix[columns, rows].T) for rows, columns in tiles)


def inner_product(a: AnyFloats, b: AnyFloats) -> float:
    """Return Σ a_ij b_ij, with the sum over rows in float64."""
    return float(np.einsum("ab,ab->a", a, b).sum(dtype=np.float64))


def weighted_sum_of_squares(a: AnyFloats, left: Floats, right: Floats) -> float:
    """Return Σ left_i a_ij² right_j, with the squares in the precision of a.

    The weights `right` are divided by their maximum, so that they do not underflow in that precision.
    """
    largest = float(right.max())
    return largest * float(left @ ((a * a) @ (right / largest).astype(a.dtype)))
