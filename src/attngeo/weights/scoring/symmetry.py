"""Symmetry and self-attending: two scores of a bilinear form M = W_q W_kᵀ from traces of its factors.

    s(M) = tr(M M) / ‖M‖²              1: symmetric, −1: skew-symmetric, about 1/d for independent random factors
    τ(M) = tr M / (√rank ‖M‖)          how much M prefers a token vector itself; rank = min(d, r)

τ is in [−1, 1]: 1 only for a positive multiple of an orthogonal projection of full rank; negative where tokens attend
to tokens unlike themselves. The r×r products of the factors are enough; the d×d matrix M need not be formed:

    tr(M M) = Σ_ab C_ab C_ba     with C = W_kᵀ W_q,     tr M = tr C
    ‖M‖²    = Σ_ab (W_qᵀ W_q)_ab (W_kᵀ W_k)_ab

All functions accept NumPy arrays or torch tensors with any number of leading batch axes.
"""

from __future__ import annotations

import math

import numpy as np

from attngeo.arrays import Array, namespace
from attngeo.weights.scoring.norms import double_sum


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
    trace: Array = double_sum(matrix * matrix.mT, (-1, -2))  # [...]
    return trace


def squared_norm(gram_query: Array, gram_key: Array) -> Array:
    """Return ‖M‖² from the Gram matrices `[..., r, r]` of both factors, as `[...]`."""
    square: Array = double_sum(gram_query * gram_key, (-1, -2))  # [...]
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


def self_attending(trace: Array, squared_norm: Array, rank: int) -> Array:
    """Return τ(M) of each form of a batch, `[...]`; NaN where M = 0.

    trace:        [...], tr M, the sum of the diagonal of W_kᵀ W_q
    squared_norm: [...], ‖M‖²
    rank:         the largest rank of M: min(d, r) for a head, min(d, G·r) for a layer

    >>> projection = np.diag([2.0, 2.0, 0.0])
    >>> float(self_attending(np.trace(projection), (projection**2).sum(), 2).round(6))
    1.0
    """
    xp = namespace(trace)
    positive = squared_norm > 0
    ratio = trace / (math.sqrt(rank) * xp.sqrt(xp.where(positive, squared_norm, 1.0)))
    share: Array = xp.where(positive, ratio, np.nan).clip(-1.0, 1.0)  # [...], rounding may exceed ±1
    return share


def self_attending_std(rank: int, d: int) -> float:
    """Return the standard deviation of τ for independent Gaussian factors of width d: 1/√(rank·d). The mean is 0."""
    return 1 / math.sqrt(rank * d)
