"""The scores of a bilinear form M = W_q W_kᵀ, from traces of its factors and from the norms of its rows and columns.

    s(M) = tr(M M) / ‖M‖²              symmetry: 1 symmetric, −1 skew-symmetric, about 1/d for random factors
    τ(M) = tr M / (√rank ‖M‖)          self-attending: how much M prefers a token vector itself; rank = min(d, r)

    t    = mean + γ·std                threshold, over all rows or over all columns; std unbiased, γ = 2
    R    = Σ (ρ_i − t) over ρ_i > t    excess of the row norms; C likewise for the column norms
    d(M) = (R − C)/(R + C)             directionality, negative: columns (the context side) dominate; 0 if R + C = 0

    dominance(M) = log(CV_rows / CV_columns)                     CV = std/mean of the norms, std unbiased
    rank(N) = (Σ|λ|²)² / Σ|λ|⁴ = ‖N‖⁴ / tr((NNᵀ)²)               effective rank of N = (M + Mᵀ)/2 or (M − Mᵀ)/2

τ is in [−1, 1]: 1 only for a positive multiple of an orthogonal projection of full rank; negative where tokens attend
to tokens unlike themselves. Dominance is negative where columns are more unequal, like the directionality. It uses
every norm, not only the few above a threshold, so its spread for random factors is small: about 1/√d. An effective rank
is k where k eigenvalues have one modulus and the others are 0.

The r×r products C = W_kᵀ W_q, A = W_qᵀ W_q and B = W_kᵀ W_k are enough; the d×d matrix M need not be formed:

    tr(M M) = Σ_ab C_ab C_ba     tr M = tr C     ‖M‖² = Σ_ab A_ab B_ab
    ρ_i = ‖M_i·‖ = √(w_i B w_iᵀ)     with w_i the rows of W_q
    κ_j = ‖M_·j‖ = √(w_j A w_jᵀ)     with w_j the rows of W_k

Expanding (M ± Mᵀ)⁴ leaves four traces, which four r×r products give for both signs at once:

    16 tr((NNᵀ)²) = 2 tr M⁴ + 4 tr(M²M²ᵀ) + 2 tr((MMᵀ)²) ± 8 tr(M³Mᵀ)
    tr M⁴ = ⟨C², C²ᵀ⟩    tr(M²M²ᵀ) = ⟨AC, CB⟩    tr((MMᵀ)²) = ⟨AB, (AB)ᵀ⟩    tr(M³Mᵀ) = ⟨AC, (CB)ᵀ⟩

Products have the precision of the factors and sums are in float64. Large products of single NumPy matrices are divided
among the cores (`attngeo.io.threads`). All functions accept NumPy arrays or torch tensors with any number of leading
batch axes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from attngeo.arrays import Array, is_torch, namespace
from attngeo.io.threads import each, spans

GAMMA = 2.0
ROUNDING = 1e-12  # two norms, or two sums of them, that differ by less than this fraction do so by rounding
# Relative error of Σ|λ|⁴ above which a rank is not given: in float64, that of a part below about 5e-4 of ‖M‖.
LOST = 1e-2
BLOCK = 256  # rows of a Gram matrix multiplied at once: wide enough for BLAS, and half of the blocks are left out


# ---- symmetry and self-attending


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
    score: Array = bounded_ratio(inner(cross, cross.mT), inner(gram_query, gram_key))  # [...]
    return score


def inner(a: Array, b: Array) -> Array:
    """Return ⟨A, B⟩ = Σ a_ij b_ij of matrices `[..., m, n]`, as `[...]`.

    ‖M‖² is that of both Gram matrices. tr(M M) is that of the cross product C = W_kᵀ W_q and its transpose, because the
    trace of a product is cyclic; so it is for M itself.
    """
    total: Array = double_sum(a * b, (-1, -2))  # [...]
    return total


def bounded_ratio(part: Array, whole: Array) -> Array:
    """Return part/whole ∈ [−1, 1], `[...]`; NaN where `whole` is not positive.

    The scores are such ratios by the inequality of Cauchy and Schwarz: a value that rounding moved beyond ±1 is moved
    back.
    """
    xp = namespace(part)
    positive = whole > 0
    ratio = part / xp.where(positive, whole, 1.0)
    bounded: Array = xp.where(positive, ratio, np.nan).clip(-1.0, 1.0)  # [...]
    return bounded


def self_attending(trace: Array, squared_norm: Array, rank: int) -> Array:
    """Return τ(M) of each form of a batch, `[...]`; NaN where M = 0.

    trace:        [...], tr M, the sum of the diagonal of W_kᵀ W_q
    squared_norm: [...], ‖M‖²
    rank:         the largest rank of M: min(d, r) for a head, min(d, G·r) for a layer

    >>> projection = np.diag([2.0, 2.0, 0.0])
    >>> float(self_attending(np.trace(projection), (projection**2).sum(), 2).round(6))
    1.0
    """
    size = math.sqrt(rank) * namespace(squared_norm).sqrt(squared_norm.clip(0.0))  # [...]
    score: Array = bounded_ratio(trace, size)  # [...]
    return score


def self_attending_std(rank: int, d: int) -> float:
    """Return the standard deviation of τ for independent Gaussian factors of width d: 1/√(rank·d). The mean is 0."""
    return 1 / math.sqrt(rank * d)


# ---- directionality and dominance


def directionality(rows: Array, columns: Array, gamma: float = GAMMA) -> Array:
    """Return d(M) of each form of a batch, `[...]`.

    rows:    [..., d_q], row norms ρ
    columns: [..., d_k], column norms κ

    A form that is zero has no direction; this function returns 0 for it, as for norms that are all equal.

    >>> norms = np.ones(64)
    >>> outlier = np.where(np.arange(64) == 5, 9.0, norms)
    >>> float(directionality(outlier, norms)), float(directionality(norms, outlier))
    (1.0, -1.0)
    """
    xp = namespace(rows)
    of_rows, of_columns = excess(rows, gamma), excess(columns, gamma)
    total, difference = of_rows + of_columns, of_rows - of_columns
    none = xp.abs(difference) <= ROUNDING * total
    score: Array = xp.where(none, 0.0, difference / xp.where(none, 1.0, total))  # [...]
    return score


def excess(norms: Array, gamma: float = GAMMA) -> Array:
    """Return Σ (ρ − t) over the norms `[..., d]` above their threshold t, as `[...]`; d ≥ 2."""
    limit = threshold(norms, gamma)  # [..., 1]
    above = norms - limit > ROUNDING * limit
    total: Array = namespace(norms).where(above, norms - limit, 0.0).sum(-1)  # [...]
    return total


def threshold(norms: Array, gamma: float = GAMMA) -> Array:
    """Return t = mean + γ·std (unbiased) of norms `[..., d]`, d ≥ 2, as `[..., 1]`."""
    limit: Array = norms.mean(-1, keepdims=True) + gamma * unbiased_std(norms)  # [..., 1]
    return limit


def coefficient_of_variation(norms: Array) -> Array:
    """Return std/mean (unbiased) of norms `[..., d]`, as `[...]`.

    It is 0 where all norms are equal, and NaN where they are all 0.

    >>> float(coefficient_of_variation(np.ones(3)))
    0.0
    """
    xp = namespace(norms)
    mean = norms.mean(-1)  # [...]
    positive = mean > 0
    ratio: Array = xp.where(positive, unbiased_std(norms)[..., 0] / xp.where(positive, mean, 1.0), np.nan)  # [...]
    return ratio


def unbiased_std(norms: Array) -> Array:
    """Return the standard deviation of norms `[..., d]` with divisor d − 1, as `[..., 1]`."""
    std: Array = namespace(norms).std(norms, axis=-1, correction=1, keepdims=True)
    return std


def dominance(rows: Array, columns: Array) -> Array:
    """Return log(CV of the row norms / CV of the column norms) of each form of a batch, `[...]`.

    rows:    [..., d_q], row norms ρ
    columns: [..., d_k], column norms κ

    It is NaN where a CV is 0 (all norms are equal, up to rounding) or does not exist (all norms 0).

    >>> norms = np.array([1.0, 2.0, 3.0])
    >>> float(dominance(norms, norms)), float(dominance(10 + norms, norms).round(3))
    (0.0, -1.792)
    """
    xp = namespace(rows)
    of_rows, of_columns = coefficient_of_variation(rows), coefficient_of_variation(columns)  # [...]
    unequal = (of_rows > ROUNDING) & (of_columns > ROUNDING)  # False for NaN
    ratio = xp.where(unequal, of_rows, 1.0) / xp.where(unequal, of_columns, 1.0)
    logarithm: Array = xp.where(unequal, xp.log(ratio), np.nan)  # [...]
    return logarithm


# ---- effective ranks


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
    fourth = inner(square, square.mT), inner(left, right), inner(both, both.mT), inner(left, right.mT)
    return _from_traces(inner(cross, cross.mT), inner(gram_query, gram_key), fourth, cross.dtype)


def effective_ranks_of_dense(form: Array) -> EffectiveRanks[Array]:
    """Return the effective ranks of dense forms `[..., d, d]`, from M² and MMᵀ."""
    square, gram = product(form, form), product(form, form.mT)  # [..., d, d]
    fourth = inner(square, square.mT), inner(square, square), inner(gram, gram), inner(square, gram)
    return _from_traces(inner(form, form.mT), inner(form, form), fourth, form.dtype)


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


# ---- norms and products


def row_norms(query: Array, gram_key: Array) -> Array:
    """Return the row norms ρ of each form, `[..., d_q]`.

    query:    [..., d_q, r], W_q
    gram_key: [..., r, r], W_kᵀ W_k

    The column norms κ are the row norms of Mᵀ = W_k W_qᵀ: `row_norms(key, gram_query)`.

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
