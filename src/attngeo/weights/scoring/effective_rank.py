"""Effective ranks of the symmetric and the skew-symmetric part of a bilinear form M = W_q W_kᵀ, without eigenvalues.

    rank(N) = (Σ|λ|²)² / Σ|λ|⁴ = ‖N‖⁴ / tr((NNᵀ)²)        N = (M + Mᵀ)/2 or (M − Mᵀ)/2

It is k where k eigenvalues have one modulus and the others are 0. Expanding (M ± Mᵀ)⁴ leaves four traces,

    16 tr((NNᵀ)²) = 2 tr M⁴ + 4 tr(M²M²ᵀ) + 2 tr((MMᵀ)²) ± 8 tr(M³Mᵀ)

and with C = W_kᵀW_q, A = W_qᵀW_q, B = W_kᵀW_k four r×r products give all of them, for both signs at once:

    tr M⁴ = ⟨C², C²ᵀ⟩    tr(M²M²ᵀ) = ⟨AC, CB⟩    tr((MMᵀ)²) = ⟨AB, (AB)ᵀ⟩    tr(M³Mᵀ) = ⟨AC, (CB)ᵀ⟩

The functions accept NumPy arrays or torch tensors with any number of leading batch axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from attngeo.arrays import Array, namespace
from attngeo.weights.scoring.norms import double_sum, product

# Relative error of Σ|λ|⁴ above which a rank is not given: in float64, that of a part below about 5e-4 of ‖M‖.
LOST = 1e-2


@dataclass(frozen=True, eq=False)
class EffectiveRanks(Generic[Array]):
    """Effective ranks of both parts; NaN for a part that is zero, or so small that it is lost to rounding."""

    symmetric: Array  # [...]
    skew: Array  # [...]
    error: Array  # [...], estimated relative error of the worse of both; infinite for a part that is zero


def effective_ranks(cross: Array, gram_query: Array, gram_key: Array) -> EffectiveRanks[Array]:
    """Return the effective ranks of each form of a batch.

    cross:      [..., r, r], W_kᵀ W_q
    gram_query: [..., r, r], W_qᵀ W_q
    gram_key:   [..., r, r], W_kᵀ W_k

    >>> w = np.eye(6)[:, :4]
    >>> ranks = effective_ranks(w.T @ w, w.T @ w, w.T @ w)
    >>> float(ranks.symmetric), float(ranks.skew)
    (4.0, nan)
    """
    square, both = product(cross, cross), product(gram_query, gram_key)
    left, right = product(gram_query, cross), product(cross, gram_key)  # [..., r, r]
    fourth = _inner(square, square.mT), _inner(left, right), _inner(both, both.mT), _inner(left, right.mT)
    return _from_traces(_inner(cross, cross.mT), _inner(gram_query, gram_key), fourth, cross.dtype)


def effective_ranks_of_dense(form: Array) -> EffectiveRanks[Array]:
    """Return the effective ranks of dense forms `[..., d, d]`, from M² and MMᵀ."""
    square, gram = product(form, form), product(form, form.mT)  # [..., d, d]
    fourth = _inner(square, square.mT), _inner(square, square), _inner(gram, gram), _inner(square, gram)
    return _from_traces(_inner(form, form.mT), _inner(form, form), fourth, form.dtype)


def _from_traces(trace: Any, norm: Any, fourth: tuple[Any, Any, Any, Any], dtype: Any) -> EffectiveRanks[Any]:
    """Return the ranks from tr(M M), ‖M‖² and the four traces of degree four, all `[...]`.

    fourth: tr M⁴, tr(M²M²ᵀ), tr((MMᵀ)²), tr(M³Mᵀ)
    dtype:  of the products they are sums of
    """
    xp = namespace(norm)
    straight, crossed, alternating, odd = fourth
    even = 2 * straight + 4 * crossed + 2 * alternating
    size = xp.abs(2 * straight) + 4 * xp.abs(crossed) + 2 * xp.abs(alternating) + 8 * xp.abs(odd)
    rounding = 2 * float(xp.finfo(dtype).eps)
    ranks, errors = [], []
    for sign in (1, -1):
        squares, powers = (norm + sign * trace) / 2, (even + sign * 8 * odd) / 16  # Σ|λ|², Σ|λ|⁴
        positive = (squares > 0) & (powers > 0)
        squares, powers = xp.where(positive, squares, 1.0), xp.where(positive, powers, 1.0)
        error = xp.where(positive, rounding * (2 * norm / squares + size / (16 * powers)), np.inf)
        ranks.append(xp.where(error < LOST, squares**2 / powers, np.nan))
        errors.append(error)
    return EffectiveRanks(ranks[0], ranks[1], xp.maximum(*errors))


def _inner(a: Any, b: Any) -> Any:
    """Return Σ a_ij b_ij of matrices `[..., n, n]`, as `[...]`."""
    return double_sum(a * b, (-1, -2))
