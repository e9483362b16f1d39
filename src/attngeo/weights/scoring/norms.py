"""Row and column norms of a bilinear form M = W_q W_kᵀ, from its factors.

    ρ_i = ‖M_i·‖ = √(w_i G w_iᵀ)     with w_i the rows of W_q and G = W_kᵀ W_k
    κ_j = ‖M_·j‖ = √(w_j G w_jᵀ)     with w_j the rows of W_k and G = W_qᵀ W_q

All functions accept NumPy arrays or torch tensors with any number of leading batch axes.
"""

from __future__ import annotations

from attngeo.arrays import Array, namespace


def row_norms(query: Array, gram_key: Array) -> Array:
    """Return the row norms ρ of each form, `[..., d_q]`.

    query:    [..., d_q, r], W_q
    gram_key: [..., r, r], W_kᵀ W_k

    >>> import numpy as np
    >>> query, key = np.random.default_rng(0).normal(size=(2, 64, 8))
    >>> bool(np.allclose(row_norms(query, key.T @ key), np.linalg.norm(query @ key.T, axis=1)))
    True
    """
    norms: Array = _root((query @ gram_key * query).sum(-1))  # [..., d_q]
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
    return _root(squares.sum(-1)), _root(squares.sum(-2))


def _root(squares: Array) -> Array:
    """Return the square roots; a square that rounding moved below 0 counts as 0."""
    roots: Array = namespace(squares).sqrt(squares.clip(0.0))
    return roots
