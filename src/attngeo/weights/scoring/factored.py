"""Scores of M = W_q W_kᵀ from its factors: the r×r products are enough, a larger d×d form is never made.

Large factors are multiplied in their own precision. An estimate of the rounding error decides whether that was enough;
if not, the scores are computed again in float64 and, where float64 Gram matrices are not enough either, from QR
factors, which lose no more digits than the dense form would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attngeo.arrays import AnyFloats, Floats
from attngeo.weights.scoring.directionality import GAMMA, directionality
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.products import (
    BLOCK,
    inner_product,
    product,
    quadratic_forms,
    squared_row_norms,
    tiled_trace_of_square,
)
from attngeo.weights.scoring.rounding_error import TRUSTED, dense_error, directionality_with_sensitivity, gram_error
from attngeo.weights.scoring.symmetry import symmetry_ratio


@dataclass(frozen=True, eq=False)
class FormScores:
    """Scores and norms of one form; NaN where a score does not exist."""

    symmetry: float
    directionality: float
    norm: float  # ‖M‖
    row_norms: Floats  # [d_q], ‖M_i·‖
    column_norms: Floats  # [d_k], ‖M_·j‖
    error: float = 0.0  # estimated error of the worse of both scores


def score_forms(query: Factors, key: Factors, *, gamma: float = GAMMA) -> Iterator[FormScores]:
    """Yield the scores of each query factor `[n, r, d_q]` with the one key factor `[1, r, d_k]`.

    A form that is zero has no scores.
    """
    if query.small or query.w.dtype != key.w.dtype:
        query, key = query.double(), key.double()
    step = forms_per_product(query)
    for start in range(0, len(query.w), step):
        some = query[start : start + step]
        with np.errstate(over="ignore", invalid="ignore"):  # such a result has no finite error and is not kept
            estimates = _with_error(some, key, gamma)
        for i, scores in enumerate(estimates):
            yield scores if scores.error <= TRUSTED else _in_double(some[i : i + 1], key, gamma)


def forms_per_product(query: Factors) -> int:
    """Return how many query factors are multiplied at once: several where they are narrow."""
    return max(1, 2 * BLOCK // int(query.w.shape[1]))


def dense_is_smaller(query: Factors, key: Factors) -> bool:
    """Return whether the form [d_q, d_k] is no larger than the Gram matrices [r, r]."""
    return bool(query.w.shape[1] >= max(query.w.shape[2], key.w.shape[2]))


def _with_error(query: Factors, key: Factors, gamma: float) -> list[FormScores]:
    """Return scores with an estimate of their error, from the smaller of Gram matrices and dense form."""
    return _from_dense(query, key, gamma) if dense_is_smaller(query, key) else _from_grams(query, key, gamma)


def _in_double(query: Factors, key: Factors, gamma: float) -> FormScores:
    """Return the scores of one form in float64, from Gram matrices if they are precise enough, else from QR factors.

    Both factors are divided by their largest entry, so that no square overflows or underflows.
    """
    scales = [float(np.abs(side.w).max()) for side in (query, key)]
    if 0.0 in scales:
        return _zero_form(query.w.shape[2], key.w.shape[2])
    query, key = (Factors(side.double().w / scale) for side, scale in zip((query, key), scales, strict=True))
    (scores,) = _with_error(query, key, gamma)
    if not scores.error <= TRUSTED:
        scores = _from_qr(query.w[0].T, key.w[0].T, gamma)
    scale = scales[0] * scales[1]
    return FormScores(
        scores.symmetry,
        scores.directionality,
        scale * scores.norm,
        scale * scores.row_norms,
        scale * scores.column_norms,
    )


def _zero_form(d_query: int, d_key: int) -> FormScores:
    return FormScores(math.nan, math.nan, 0.0, np.zeros(d_query), np.zeros(d_key))


def _from_grams(query: Factors, key: Factors, gamma: float) -> list[FormScores]:
    """Return the scores of each query with the key, from the products of the factors.

    tr(M M) = Σ C_ab C_ba, ‖M‖² = Σ (G_q)_ab (G_k)_ab, ρ² = diag(W_q G_k W_qᵀ), κ² = diag(W_k G_q W_kᵀ)
    """
    w_query, w_key, gram_query, gram_key = query.w, key.w[0], query.gram, key.gram[0]
    n, r, d = w_query.shape
    square = d == w_key.shape[1]
    cross = product(w_query.reshape(n * r, d), w_key.T).reshape(n, r, r) if square else None  # C of each query
    all_columns = np.sqrt(quadratic_forms(gram_query, w_key))  # [n, d_k]
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
        direction, sensitivity = directionality_with_sensitivity(rows, columns, gamma)
        error = gram_error(rows, columns, gram_query[i], gram_key, own_cross, symmetry, squared_norm, sensitivity)
        found.append(FormScores(symmetry, direction, math.sqrt(squared_norm), rows, columns, error))
    return found


def _from_dense(query: Factors, key: Factors, gamma: float) -> list[FormScores]:
    """Return the scores of each query with the key, from M itself `[d_q, d_k]`.

    Where r ≥ d, M is no larger than the Gram matrices, and a single product makes it.
    """
    w_key = key.w[0]
    found = []
    for w_query in query.w:
        form = product(w_query.T, w_key)  # [d_q, d_k]
        row_squares, column_squares = squared_row_norms(form), squared_row_norms(form.T)  # [d_q], [d_k]
        squared_norm = float(row_squares.sum())
        rows, columns = np.sqrt(row_squares), np.sqrt(column_squares)
        if not _in_range(squared_norm, query.w):
            found.append(_unknown(rows, columns))
            continue
        square = len(rows) == len(columns)
        symmetry = _symmetry(tiled_trace_of_square(form), squared_norm) if square else math.nan
        direction, sensitivity = directionality_with_sensitivity(rows, columns, gamma)
        error = dense_error(rows, columns, w_query, w_key, squared_norm, sensitivity)
        found.append(FormScores(symmetry, direction, math.sqrt(squared_norm), rows, columns, error))
    return found


def _from_qr(query: Floats, key: Floats, gamma: float) -> FormScores:
    """Return the scores of one form with factors `[d_q, r]`, `[d_k, r]` from their QR decompositions.

    With W_q = U_q R_q and W_k = U_k R_k, M = U_q N U_kᵀ where N = R_q R_kᵀ: no factor is squared.
    """
    (u_query, r_query), (u_key, r_key) = np.linalg.qr(query), np.linalg.qr(key)  # [d, r], [r, r]
    n = r_query @ r_key.T  # [r, r]
    norm = float(np.linalg.norm(n))
    if norm <= 1e-14 * np.linalg.norm(r_query) * np.linalg.norm(r_key):
        return _zero_form(len(query), len(key))  # the product is zero up to rounding
    rows, columns = np.linalg.norm(query @ r_key.T, axis=1), np.linalg.norm(key @ r_query.T, axis=1)
    symmetry = math.nan
    if len(query) == len(key):
        core = n @ (u_key.T @ u_query)  # [r, r], with tr(core core) = tr(M M)
        symmetry = _symmetry(inner_product(core, core.T), norm**2)
    return FormScores(symmetry, float(directionality(rows, columns, gamma)), norm, rows, columns)


def _symmetry(trace: float, squared_norm: float) -> float:
    return float(symmetry_ratio(np.asarray(trace), np.asarray(squared_norm)))


def _unknown(rows: Floats, columns: Floats) -> FormScores:
    """Return a result with an infinite error, so that it is computed again."""
    return FormScores(math.nan, math.nan, 0.0, rows, columns, math.inf)


def _in_range(sum_of_squares: float, w: AnyFloats) -> bool:
    """Return whether the sum is far enough from the limits of the precision of w that no term that matters is lost."""
    limits = np.finfo(w.dtype)
    return bool(float(limits.tiny / limits.eps) * w[0].size < sum_of_squares < math.inf)
