"""Scores of M = W_q W_kᵀ from its factors: the r×r products are enough, a larger d×d form is never made.

Large factors are multiplied in their own precision. An estimate of the rounding error decides whether that was enough;
if not, the scores are computed again in float64 and, where float64 Gram matrices are not enough either, from QR
factors, which lose no more digits than the dense form would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attngeo.arrays import AnyFloats, Floats
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.directionality import GAMMA, directionality
from attngeo.weights.scoring.dominance import dominance
from attngeo.weights.scoring.effective_rank import EffectiveRanks, effective_ranks, effective_ranks_of_dense
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.products import (
    BLOCK,
    inner_product,
    product,
    quadratic_forms,
    squared_row_norms,
    tiled_trace_of_square,
)
from attngeo.weights.scoring.rotary.heads import (
    NO_ROTATION,
    RotaryScores,
    averaged_norms,
    averaged_product,
    head_rotary_scores,
    pair_products,
    rotary_scores_in_double,
    scores_of_zero,
    select_pairs,
)
from attngeo.weights.scoring.rounding_error import TRUSTED, dense_error, directionality_with_sensitivity, gram_error
from attngeo.weights.scoring.self_attending import self_attending
from attngeo.weights.scoring.symmetry import symmetry_ratio

RANK_ERROR = 1e-3  # estimated relative error of an effective rank above which it is computed again with more digits


@dataclass(frozen=True, eq=False)
class FormScores:
    """Scores and norms of one form; NaN where a score does not exist or was not requested."""

    symmetry: float
    directionality: float
    norm: float  # ‖M‖
    row_norms: Floats  # [d_q], ‖M_i·‖
    column_norms: Floats  # [d_k], ‖M_·j‖
    error: float = 0.0  # estimated error of the worse of both scores
    self_attending: float = math.nan
    rank_symmetric: float = math.nan
    rank_skew: float = math.nan
    dominance: float = math.nan
    rotary: RotaryScores = NO_ROTATION  # averaged over offsets
    cross: AnyFloats | None = None  # [r, r], W_qᵀ W_k, where it was computed and is to be kept


@dataclass(frozen=True)
class Figures:
    """What is computed of a form beyond symmetry and directionality."""

    gamma: float = GAMMA
    dominance: bool = True
    ranks: bool = False  # the effective ranks
    rotary: RotaryPairs | None = None  # scores of a head averaged over offsets
    pairs: bool = False  # keep the products of each rotary pair
    cross: bool = False  # keep W_qᵀ W_k


PLAIN = Figures()


def score_forms(query: Factors, key: Factors, figures: Figures = PLAIN) -> Iterator[FormScores]:
    """Yield the scores of each query factor `[n, r, d_q]` with the one key factor `[1, r, d_k]`.

    A form that is zero has no scores.
    """
    if query.small or query.w.dtype != key.w.dtype:
        query, key = query.double(), key.double()
    step = forms_per_product(query)
    for start in range(0, len(query.w), step):
        some = query if len(query.w) <= step else query[start : start + step]  # itself, which keeps its Gram matrices
        with np.errstate(over="ignore", invalid="ignore"):  # such a result has no finite error and is not kept
            estimates = _with_error(some, key, figures)
        for i, estimate in enumerate(estimates):
            scores = estimate if estimate.error <= TRUSTED else _in_double(some[i : i + 1], key, figures)
            if figures.dominance:
                rows, columns = (norms / (norms.max() or 1.0) for norms in (scores.row_norms, scores.column_norms))
                scores = replace(scores, dominance=float(dominance(rows, columns)))  # relative: no square overflows
            yield scores


def forms_per_product(query: Factors) -> int:
    """Return how many query factors are multiplied at once: several where they are narrow."""
    return max(1, 2 * BLOCK // int(query.w.shape[1]))


def dense_is_smaller(query: Factors, key: Factors) -> bool:
    """Return whether the form [d_q, d_k] is no larger than the Gram matrices [r, r]."""
    return bool(query.w.shape[1] >= max(query.w.shape[2], key.w.shape[2]))


def _with_error(query: Factors, key: Factors, figures: Figures) -> list[FormScores]:
    """Return scores with an estimate of their error, from the smaller of Gram matrices and dense form."""
    return _from_dense(query, key, figures) if dense_is_smaller(query, key) else _from_grams(query, key, figures)


def _in_double(query: Factors, key: Factors, figures: Figures) -> FormScores:
    """Return the scores of one form in float64, from Gram matrices if they are precise enough, else from QR factors.

    Both factors are divided by their largest entry, so that no square overflows or underflows.
    """
    scales = [float(np.abs(side.w).max()) for side in (query, key)]
    if 0.0 in scales:
        return _zero_form(query.w.shape[2], key.w.shape[2], figures)
    query, key = (Factors(side.double().w / scale) for side, scale in zip((query, key), scales, strict=True))
    (scores,) = _with_error(query, key, figures)
    if not scores.error <= TRUSTED:
        scores = _from_qr(query.w[0].T, key.w[0].T, figures)
    scale = scales[0] * scales[1]
    return replace(
        scores,
        norm=scale * scores.norm,
        row_norms=scale * scores.row_norms,
        column_norms=scale * scores.column_norms,
        error=0.0,
        rotary=scores.rotary.scaled(scale),
        cross=None,  # that of the divided factors
    )


def _zero_form(d_query: int, d_key: int, figures: Figures) -> FormScores:
    rotary = scores_of_zero(figures.rotary if figures.pairs and d_query == d_key else None)
    return FormScores(math.nan, math.nan, 0.0, np.zeros(d_query), np.zeros(d_key), rotary=rotary)


def _from_grams(query: Factors, key: Factors, figures: Figures) -> list[FormScores]:
    """Return the scores of each query with the key, from the products of the factors.

    tr(M M) = Σ C_ab C_ba, ‖M‖² = Σ (G_q)_ab (G_k)_ab, ρ² = diag(W_q G_k W_qᵀ), κ² = diag(W_k G_q W_kᵀ)
    """
    w_query, w_key, gram_query, gram_key = query.w, key.w[0], query.gram, key.gram[0]
    n, r, d = w_query.shape
    square = d == w_key.shape[1]
    cross = product(w_query.reshape(n * r, d), w_key.T).reshape(n, r, r) if square else None  # Cᵀ of each query
    all_columns = np.sqrt(quadratic_forms(gram_query, w_key))  # [n, d_k]
    rotary = _rotary_from_grams(query, key, cross, figures)
    found = []
    for i, columns in enumerate(all_columns):
        rows = np.sqrt(quadratic_forms(gram_key[None], w_query[i])[0])  # [d_q]
        squared_norm = inner_product(gram_query[i], gram_key)
        energies = (float(np.trace(gram)) for gram in (gram_query[i], gram_key))  # ‖W_q‖², ‖W_k‖²
        if not all(_in_range(square, w_query) for square in (squared_norm, *energies)):
            found.append(_unknown(rows, columns))
            continue
        own_cross = None if cross is None else cross[i]  # [r, r]
        symmetry = math.nan if own_cross is None else _symmetry(inner_product(own_cross, own_cross.T), squared_norm)
        direction, sensitivity = directionality_with_sensitivity(rows, columns, figures.gamma)
        error = gram_error(rows, columns, gram_query[i], gram_key, own_cross, symmetry, squared_norm, sensitivity)
        scores = FormScores(symmetry, direction, math.sqrt(squared_norm), rows, columns, error, rotary=rotary[i])
        if own_cross is not None:
            scores = replace(scores, cross=own_cross if figures.cross else None)
            ranks = effective_ranks(own_cross.T, gram_query[i], gram_key, product) if figures.ranks else None
            scores = _with_finer(scores, float(np.trace(own_cross, dtype=np.float64)), min(r, d), ranks, query)
        found.append(scores)
    return found


def _rotary_from_grams(
    query: Factors, key: Factors, cross: AnyFloats | None, figures: Figures
) -> Sequence[RotaryScores]:
    """Return the scores of each query with the key averaged over offsets; without any where nothing rotates.

    cross: [n, r, r], W_qᵀ W_k of each query
    """
    rotary = figures.rotary
    if rotary is None:
        return [NO_ROTATION] * len(query.w)
    gram_key = averaged_product(key.gram[0], rotary)  # [r, r]
    gram_queries = np.stack([averaged_product(gram, rotary) for gram in query.gram])  # [n, r, r]
    all_columns = averaged_norms(gram_queries, key.w[0], rotary)  # [n, d_k]
    found = []
    for i, columns in enumerate(all_columns):
        rows = averaged_norms(gram_key[None], query.w[i], rotary)[0]  # [d_q]
        own_cross = None if cross is None else averaged_product(cross[i], rotary)
        scores, precise = head_rotary_scores(rows, columns, gram_queries[i], gram_key, own_cross, figures.gamma)
        if not precise:
            scores = rotary_scores_in_double(query.w[i : i + 1], key.w, rotary, figures.gamma)
        if figures.pairs and cross is not None:
            a, b, x = (select_pairs(z, rotary) for z in (query.gram[i], key.gram[0], cross[i]))  # [pairs, 4]
            scores = replace(scores, pairs=pair_products(a, b, x, rotary.factor))
        found.append(scores)
    return found


def _with_finer(
    scores: FormScores, trace: float, rank: int, ranks: EffectiveRanks[AnyFloats] | None, query: Factors
) -> FormScores:
    """Return scores with those that come from tr M and the effective ranks.

    Ranks that need more digits than the factors of the query have make the whole result one to be computed again.
    """
    share = float(self_attending(np.asarray(trace), np.asarray(scores.norm**2), rank))
    if ranks is None:
        return replace(scores, self_attending=share)
    too_few_digits = query.w.dtype != np.float64 and not float(ranks.error) < RANK_ERROR
    return replace(
        scores,
        self_attending=share,
        rank_symmetric=float(ranks.symmetric),
        rank_skew=float(ranks.skew),
        error=math.inf if too_few_digits else scores.error,
    )


def _from_dense(query: Factors, key: Factors, figures: Figures) -> list[FormScores]:
    """Return the scores of each query with the key, from M itself `[d_q, d_k]`.

    Where r ≥ d, M is no larger than the Gram matrices, and a single product makes it.
    """
    w_key = key.w[0]
    found = []
    for i, w_query in enumerate(query.w):
        form = product(w_query.T, w_key)  # [d_q, d_k]
        row_squares, column_squares = squared_row_norms(form), squared_row_norms(form.T)  # [d_q], [d_k]
        squared_norm = float(row_squares.sum())
        rows, columns = np.sqrt(row_squares), np.sqrt(column_squares)
        if not _in_range(squared_norm, query.w):
            found.append(_unknown(rows, columns))
            continue
        square = len(rows) == len(columns)
        symmetry = _symmetry(tiled_trace_of_square(form), squared_norm) if square else math.nan
        direction, sensitivity = directionality_with_sensitivity(rows, columns, figures.gamma)
        error = dense_error(rows, columns, w_query, w_key, squared_norm, sensitivity)
        rotary = _rotary_in_double(query[i : i + 1], key, figures)
        scores = FormScores(symmetry, direction, math.sqrt(squared_norm), rows, columns, error, rotary=rotary)
        if square:
            ranks = effective_ranks_of_dense(form, product) if figures.ranks else None
            scores = _with_finer(scores, float(np.trace(form, dtype=np.float64)), len(rows), ranks, query)
        found.append(scores)
    return found


def _rotary_in_double(query: Factors, key: Factors, figures: Figures) -> RotaryScores:
    """Return the scores of one head averaged over offsets, from its factors in float64."""
    rotary = figures.rotary
    if rotary is None:
        return NO_ROTATION
    scores = rotary_scores_in_double(query.w, key.w, rotary, figures.gamma)
    if not figures.pairs:
        return scores
    w_query, w_key = query.double().w[0], key.double().w[0]  # [r, d]
    products = (w_query @ w_query.T, w_key @ w_key.T, w_query @ w_key.T)
    a, b, x = (select_pairs(z, rotary) for z in products)  # [pairs, 4]
    return replace(scores, pairs=pair_products(a, b, x, rotary.factor))


def _from_qr(query: Floats, key: Floats, figures: Figures) -> FormScores:
    """Return the scores of one form with factors `[d_q, r]`, `[d_k, r]` from their QR decompositions.

    With W_q = U_q R_q and W_k = U_k R_k, M = U_q N U_kᵀ where N = R_q R_kᵀ: no factor is squared.
    """
    (u_query, r_query), (u_key, r_key) = np.linalg.qr(query), np.linalg.qr(key)  # [d, r], [r, r]
    n = r_query @ r_key.T  # [r, r]
    norm = float(np.linalg.norm(n))
    if norm <= 1e-14 * np.linalg.norm(r_query) * np.linalg.norm(r_key):
        return _zero_form(len(query), len(key), figures)  # the product is zero up to rounding
    rows, columns = np.linalg.norm(query @ r_key.T, axis=1), np.linalg.norm(key @ r_query.T, axis=1)
    sides = Factors(query.T[None]), Factors(key.T[None])
    direction = float(directionality(rows, columns, figures.gamma))
    scores = FormScores(math.nan, direction, norm, rows, columns, rotary=_rotary_in_double(*sides, figures))
    if len(query) != len(key):
        return scores
    core = (u_key.T @ u_query) @ n  # [r, r]: W_kᵀW_q of the factors U_q N and U_k, so tr(core core) = tr(M M)
    ranks = effective_ranks(core, n.T @ n, np.eye(len(n))) if figures.ranks else None
    scores = replace(scores, symmetry=_symmetry(inner_product(core, core.T), norm**2))
    return _with_finer(scores, float(np.trace(core)), min(query.shape), ranks, sides[0])


def _symmetry(trace: float, squared_norm: float) -> float:
    return float(symmetry_ratio(np.asarray(trace), np.asarray(squared_norm)))


def _unknown(rows: Floats, columns: Floats) -> FormScores:
    """Return a result with an infinite error, so that it is computed again."""
    return FormScores(math.nan, math.nan, 0.0, rows, columns, math.inf)


def _in_range(sum_of_squares: float, w: AnyFloats) -> bool:
    """Return whether the sum is far enough from the limits of the precision of w that no term that matters is lost."""
    limits = np.finfo(w.dtype)
    return bool(float(limits.tiny / limits.eps) * w[0].size < sum_of_squares < math.inf)
