"""The symmetry score of a bilinear form M = W_q W_kᵀ.

    s(M) = tr(M M) / ‖M‖²        1: symmetric, −1: skew-symmetric, about 1/d for independent random factors

The r×r products of the factors are enough; the d×d matrix M need not be formed:

    tr(M M) = Σ_ab C_ab C_ba     with C = W_kᵀ W_q
    ‖M‖²    = Σ_ab (W_qᵀ W_q)_ab (W_kᵀ W_k)_ab

All functions accept NumPy arrays or torch tensors with any number of leading batch axes.
"""

from __future__ import annotations

import numpy as np

from attngeo.arrays import Array, namespace


def symmetry(cross: Array, gram_query: Array, gram_key: Array) -> Array:
    """Return s(M) of each form of a batch, `[...]`; NaN where M = 0.

    cross:      [..., r, r], W_kᵀ W_q
    gram_query: [..., r, r], W_qᵀ W_q
    gram_key:   [..., r, r], W_kᵀ W_k

    >>> w = np.random.default_rng(0).normal(size=(64, 8))
    >>> gram = w.T @ w
    >>> float(symmetry(gram, gram, gram))
    1.0
    """
    score: Array = symmetry_ratio(trace_of_square(cross), squared_norm(gram_query, gram_key))  # [...]
    return score


def trace_of_square(matrix: Array) -> Array:
    """Return tr(A A) = Σ_ab A_ab A_ba of square matrices `[..., n, n]`, as `[...]`.

    For the cross product C = W_kᵀ W_q this is tr(M M), because the trace of a product is cyclic; so it is for M itself.
    """
    trace: Array = (matrix * matrix.swapaxes(-1, -2)).sum((-1, -2))  # [...]
    return trace


def squared_norm(gram_query: Array, gram_key: Array) -> Array:
    """Return ‖M‖² from the Gram matrices `[..., r, r]` of both factors, as `[...]`."""
    square: Array = (gram_query * gram_key).sum((-1, -2))  # [...]
    return square


def symmetry_ratio(trace: Array, squared_norm: Array) -> Array:
    """Return s(M) = tr(M M)/‖M‖² from its two parts, `[...]`; NaN where ‖M‖² is not positive.

    |s| ≤ 1 by the inequality of Cauchy and Schwarz, so a value that rounding moved beyond ±1 is moved back.
    """
    xp = namespace(trace)
    positive = squared_norm > 0
    ratio = trace / xp.where(positive, squared_norm, 1.0)
    score: Array = xp.where(positive, ratio, np.nan).clip(-1.0, 1.0)  # [...]
    return score
