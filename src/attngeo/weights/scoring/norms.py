"""Row and column norms of a bilinear form M = W_q W_kᵀ, from its factors, and the products of large factors.

    ρ_i = ‖M_i·‖ = √(w_i G w_iᵀ)     with w_i the rows of W_q and G = W_kᵀ W_k
    κ_j = ‖M_·j‖ = √(w_j G w_jᵀ)     with w_j the rows of W_k and G = W_qᵀ W_q

Products have the precision of the factors and sums are in float64. Large products of single NumPy matrices are divided
among the cores (`attngeo.io.threads`). All functions accept NumPy arrays or torch tensors with any number of leading
batch axes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attngeo.arrays import Array, is_torch, namespace
from attngeo.io.threads import each, spans

BLOCK = 256  # rows of a Gram matrix multiplied at once: wide enough for BLAS, and half of the blocks are left out


def row_norms(query: Array, gram_key: Array) -> Array:
    """Return the row norms ρ of each form, `[..., d_q]`.

    query:    [..., d_q, r], W_q
    gram_key: [..., r, r], W_kᵀ W_k

    >>> query, key = np.random.default_rng(0).normal(size=(2, 64, 8))
    >>> bool(np.allclose(row_norms(query, key.T @ key), np.linalg.norm(query @ key.T, axis=1)))
    True
    """
    r, w = gram_key.shape[-1], query.mT  # [..., r, d_q], how checkpoints store factors
    # G is symmetric: only its blocks on and right of the diagonal are multiplied, and those right of it count twice.
    blocks: list[tuple[int, Any]] = []
    for i in range(0, r, BLOCK):
        block = gram_key[..., i : i + BLOCK, i:]  # [..., b, r - i]
        if i + BLOCK < r:
            block = block + 0  # a copy
            block[..., BLOCK:] *= 2
        blocks.append((i, block))

    def of_rows(rows: slice) -> Any:
        some = w[..., rows]
        parts = (double_sum((block @ some[..., i:, :]) * some[..., i : i + BLOCK, :], -2) for i, block in blocks)
        return sum(parts)

    work = r * r * w.shape[-1]
    divided = not is_torch(w) and math.prod(w.shape[:-2]) == math.prod(gram_key.shape[:-2]) == 1
    parts = each(of_rows, spans(w.shape[-1], work) if divided else [slice(None)], work)
    norms: Array = _root(parts[0] if len(parts) == 1 else np.concatenate(parts, -1))  # [..., d_q]
    return norms


def column_norms(key: Array, gram_query: Array) -> Array:
    """Return the column norms κ of each form, `[..., d_k]`: the row norms of Mᵀ = W_k W_qᵀ.

    key:        [..., d_k, r], W_k
    gram_query: [..., r, r], W_qᵀ W_q
    """
    norms: Array = row_norms(key, gram_query)  # [..., d_k]
    return norms


def dense_norms(form: Array) -> tuple[Array, Array]:
    """Return the row norms `[..., d_q]` and the column norms `[..., d_k]` of dense forms `[..., d_q, d_k]`."""
    squares = form * form  # [..., d_q, d_k]
    return _root(double_sum(squares, -1)), _root(double_sum(squares, -2))


def _root(squares: Array) -> Array:
    """Return the square roots; a square that rounding moved below 0 counts as 0."""
    roots: Array = namespace(squares).sqrt(squares.clip(0.0))
    return roots


def double_sum(values: Any, axes: int | tuple[int, ...]) -> Any:
    """Return the sum over some axes, added up in float64.

    >>> float(double_sum(np.array([1e8, 1, -1e8], np.float32), -1))
    1.0
    """
    return values.sum(axes, dtype=namespace(values).float64)


def product(a: Any, b: Any) -> Any:
    """Return a @ b, `[..., m, n]`; the rows of a single large matrix are divided among the cores."""
    *batch, m, k = a.shape
    if is_torch(a) or math.prod(batch) * math.prod(b.shape[:-2]) > 1:
        return a @ b
    work = m * k * b.shape[-1]
    parts = each(lambda rows: a[..., rows, :] @ b, spans(m, work), work)
    return parts[0] if len(parts) == 1 else np.concatenate(parts, -2)


def gram_matrix(w: Any) -> Any:
    """Return Wᵀ W, `[..., r, r]`, of factors `[..., d, r]`."""
    *batch, d, r = w.shape
    if is_torch(w) or math.prod(batch) > 1 or len(spans(r, d * r * r)) == 1:
        return w.mT @ w  # of one array with itself, for which NumPy does half the work
    gram = np.empty((*batch, r, r), w.dtype)
    blocks = [slice(i, i + 2 * BLOCK) for i in range(0, r, 2 * BLOCK)]

    def multiply(pair: tuple[slice, slice]) -> None:
        gram[..., pair[0], pair[1]] = w[..., pair[0]].mT @ w[..., pair[1]]
        if pair[0] != pair[1]:
            gram[..., pair[1], pair[0]] = gram[..., pair[0], pair[1]].mT

    each(multiply, [(a, b) for i, a in enumerate(blocks) for b in blocks[i:]], 4 * BLOCK**2 * d)
    return gram
