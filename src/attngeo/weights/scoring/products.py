"""Products and sums of matrices, shared out over the cores, added up in float64 where it matters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attngeo.io.threads import each, spans

Floats = NDArray[np.floating[Any]]
Doubles = NDArray[np.float64]

BLOCK = 256  # rows of a Gram multiplied at once: wide enough for BLAS, and half the Gram need not be multiplied
TILE = 64  # side of the squares of M that are added up at once
LANES = 16  # terms added in the factors' own precision before the float64 sum takes over


def product(a: Floats, b: Floats) -> Floats:
    """a @ b, rows of a shared out over the cores."""
    (m, k), n = a.shape, b.shape[1]
    out = np.empty((m, n), a.dtype)
    each(lambda rows: np.matmul(a[rows], b, out=out[rows]), spans(m, m * n * k), m * n * k)
    return out


def symmetric_product(w: Floats) -> Floats:
    """w @ w.T, block by block and each pair of blocks once."""
    r, d = w.shape
    out = np.empty((r, r), w.dtype)
    cuts = [slice(i, i + BLOCK) for i in range(0, r, BLOCK)]

    def block(pair: tuple[slice, slice]) -> None:
        np.matmul(w[pair[0]], w[pair[1]].T, out=out[pair])
        if pair[0] != pair[1]:
            out[pair[1], pair[0]] = out[pair].T

    each(block, [(a, b) for i, a in enumerate(cuts) for b in cuts[i:]], BLOCK * BLOCK * d)
    return out


def quadratic(gram: Floats, w: Floats) -> Doubles:
    """w_jᵀ G w_j for every G `[n, r, r]` and every column w_j of w `[r, d]`: `[n, d]`, sums in float64.

    G is symmetric, so only its blocks on and right of the diagonal are multiplied, the latter counted twice.
    """
    n, r, _ = gram.shape
    uppers = []
    for i in range(0, r, BLOCK):
        upper = gram[:, i : i + BLOCK, i:].copy()  # [n, b, r - i]
        upper[:, :, BLOCK:] *= 2
        uppers.append(upper)

    def part(columns: slice) -> Doubles:
        some = w[:, columns]
        total = np.zeros((n, some.shape[1]))
        for i, upper in zip(range(0, r, BLOCK), uppers, strict=True):
            b = upper.shape[1]
            multiplied = (upper.reshape(n * b, r - i) @ some[i:]).reshape(n, b, -1)
            for j in range(0, b, LANES):
                lanes = some[i + j : i + j + LANES]
                for m in range(n):
                    total[m] += np.einsum("rd,rd->d", multiplied[m, j : j + LANES], lanes)
        return total

    work = n * r * r * w.shape[1]
    parts = each(part, spans(w.shape[1], work), work)
    return np.maximum(np.concatenate(parts, axis=1), 0.0)


def squared(form: Floats) -> Doubles:
    """Squared row norms of a matrix, sums in float64."""
    total = np.zeros(len(form))
    for j in range(0, form.shape[1], TILE):
        tile = form[:, j : j + TILE]
        total += np.einsum("ij,ij->i", tile, tile)
    return total


def traced(form: Floats) -> float:
    """tr(M M) of a square matrix, tile by tile: a whole transpose would miss the cache at every entry."""
    cuts = range(0, len(form), TILE)
    return sum(inner(form[i : i + TILE, j : j + TILE], form[j : j + TILE, i : i + TILE].T) for i in cuts for j in cuts)


def inner(a: Floats, b: Floats) -> float:
    """Σ a_ij b_ij, rows added in float64."""
    return float(np.einsum("ab,ab->a", a, b).sum(dtype=np.float64))


def spread(a: Floats, left: Doubles, right: Doubles) -> float:
    """Σ left_i a_ij² right_j, the squares in a's precision and out of underflow's way."""
    top = float(right.max())
    return top * float(left @ ((a * a) @ (right / top).astype(a.dtype)))
