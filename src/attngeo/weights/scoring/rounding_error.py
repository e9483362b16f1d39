"""Estimates of the rounding error of scores that were computed from float32 or float64 products.

A score whose estimate exceeds `TRUSTED` is computed again with more digits (see `factored`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attngeo.arrays import AnyFloats, Floats, namespace
from attngeo.weights.scoring.directionality import (
    directionality_of_excess,
    exceeds,
    excess,
    excess_over,
    threshold,
)
from attngeo.weights.scoring.products import weighted_sum_of_squares

TRUSTED = 2e-6 / 3  # the true error was never found to be more than 3 times an estimate of this size


def gram_error(
    rows: Floats,
    columns: Floats,
    gram_query: AnyFloats,
    gram_key: AnyFloats,
    cross: AnyFloats | None,
    symmetry: float,
    squared_norm: float,
    sensitivity: float,
) -> float:
    """Return the estimated error of the worse of both scores, if they were computed from Gram matrices.

    rows, columns: [d_q], [d_k], norms of the rows and columns of M
    gram_query, gram_key, cross: [r, r]; cross is None where M is not square and has no symmetry
    squared_norm: ‖M‖²
    sensitivity: that of the directionality
    """
    # Each entry of a product of factors is off by about one rounding of ‖w_a‖‖w_b‖, independently of the others; by
    # several where one row outweighs the rest, because every later term is then rounded at the size of that row.
    unit = _rounding(gram_query) * (1 + 5 * math.sqrt(max(concentration(rows), concentration(columns))))
    q2, k2 = gram_query.diagonal().astype(np.float64), gram_key.diagonal().astype(np.float64)  # [r]
    cancellation = max(1.0, float(q2 @ k2) / squared_norm)  # how much larger the terms of ρ² are than their sum
    error = unit * cancellation * sensitivity
    if cross is None:
        return error
    in_trace = 4 * weighted_sum_of_squares(cross, k2, q2)
    in_norm = 2 * weighted_sum_of_squares(gram_query, k2, k2) + 2 * weighted_sum_of_squares(gram_key, q2, q2)
    return max(error, unit * math.sqrt(in_trace + symmetry**2 * in_norm) / squared_norm)


def batched_error(
    squared_norm: Floats, symmetry: Floats, sensitivity: Floats, spread: Floats, terms: Sequence[Floats]
) -> Floats:
    """Return `gram_error` of float64 forms, `[n]`; infinite where a form is zero or has no excess.

    squared_norm, symmetry: [n]
    sensitivity, spread:    [n], from `batched_sensitivity`
    terms:                  each [n], from `gram_terms`; 0 where the scores come from dense forms
    """
    with np.errstate(all="ignore"):  # a result that is not finite counts as infinite
        energy, in_trace, in_norm = terms
        of_symmetry = np.sqrt(in_trace + np.where(in_norm > 0, symmetry, 0.0) ** 2 * in_norm) / squared_norm
        error = np.maximum(sensitivity * np.maximum(energy / squared_norm, 1.0), of_symmetry)
        error = np.finfo(np.float64).eps / 2 * (1 + 5 * np.sqrt(spread)) * error
        estimate: Floats = np.where((squared_norm > 0) & np.isfinite(error), error, np.inf)
    return estimate


def batched_sensitivity(rows: Any, columns: Any) -> tuple[Any, Any]:
    """Return the second result of `directionality_with_sensitivity`, and the larger `concentration`, of many forms.

    rows, columns: [n, d_q], [n, d_k]

    Both are `[n]`, NaN or infinite where a form is zero or has no excess.
    """
    xp = namespace(rows)
    squares, total, spreads = 0.0, 0.0, []
    for norms in (rows, columns):
        limit = threshold(norms) if norms.shape[-1] > 1 else norms
        outliers = xp.where(exceeds(norms, limit), norms, 0.0)
        count = (outliers > 0).sum(-1)
        squares = squares + (outliers**2).sum(-1) + (count * limit[..., 0]) ** 2 / norms.shape[-1]
        total = total + excess_over(norms, limit)
        spreads.append((norms**4).sum(-1) / (norms**2).sum(-1) ** 2)
    return xp.sqrt(squares) / total, xp.maximum(*spreads)


def gram_terms(gram_query: Any, gram_key: Any, cross: Any) -> tuple[Any, Any, Any]:
    """Return what `batched_error` needs of the products `[..., r, r]` of many forms, each `[...]`.

    cross: None where forms are not square and have no symmetry
    """
    q2, k2 = gram_query.diagonal(0, -2, -1), gram_key.diagonal(0, -2, -1)  # [..., r]
    energy = (q2 * k2).sum(-1)
    if cross is None:
        return energy, 0 * energy, 0 * energy
    in_norm = 2 * _weighted(gram_query, k2, k2) + 2 * _weighted(gram_key, q2, q2)
    return energy, 4 * _weighted(cross, k2, q2), in_norm


def _weighted(matrix: Any, left: Any, right: Any) -> Any:
    """Return Σ left_a Z_ab² right_b of matrices `[..., r, r]` and weights `[..., r]`, as `[...]`."""
    return ((matrix * matrix) @ right[..., None] * left[..., None]).sum((-1, -2))


def dense_error(
    rows: Floats, columns: Floats, query: AnyFloats, key: AnyFloats, squared_norm: float, sensitivity: float
) -> float:
    """Return the estimated error of the worse of both scores, if they were computed from the dense form.

    rows, columns: [d_q], [d_k], norms of the rows and columns of M
    query, key: [r, d_q], [r, d_k], the factors
    squared_norm: ‖M‖²
    sensitivity: that of the directionality
    """
    q2, k2 = (np.einsum("rd,rd->r", w, w) for w in (query, key))
    cancellation = math.sqrt(max(1.0, float(q2 @ k2) / squared_norm))
    # The errors of the entries of M are independent, so a norm over many of them has a smaller one.
    averaging = min(1.0, 10 * math.sqrt(max(concentration(rows), concentration(columns))))
    return _rounding(query) * cancellation * averaging * max(sensitivity, 2.0)


def directionality_with_sensitivity(rows: Floats, columns: Floats, gamma: float) -> tuple[float, float]:
    """Return d(M), and its error per unit of relative error in each norm, the errors taken as independent.

    The second is infinite where no norm exceeds its threshold: rounding alone may have decided that.
    """
    row_excess, row_sensitivity = _excess_with_sensitivity(rows, gamma)
    column_excess, column_sensitivity = _excess_with_sensitivity(columns, gamma)
    total = float(row_excess + column_excess)
    score = float(directionality_of_excess(row_excess, column_excess))
    return score, math.hypot(row_sensitivity, column_sensitivity) / total if total > 0 else math.inf


def _excess_with_sensitivity(norms: Floats, gamma: float) -> tuple[Floats, float]:
    """Return the excess of norms `[d]`, and its root-mean-square error per unit of relative error in each norm."""
    if len(norms) < 2:
        return excess(norms, gamma), 0.0
    limit = threshold(norms, gamma)  # [1]
    outliers = norms[exceeds(norms, limit)]
    square = float(outliers @ outliers) + (len(outliers) * float(limit[0])) ** 2 / len(norms)
    return excess_over(norms, limit), math.sqrt(square)


def concentration(norms: Floats) -> float:
    """Return Σ ρ⁴/(Σ ρ²)² of norms `[d]`, not all 0: 1/d where all are equal, 1 where a single one is not 0."""
    squares = np.square(norms / norms.max())  # relative to the largest, so that no power underflows
    return float(squares @ squares) / float(squares.sum()) ** 2


def _rounding(array: AnyFloats) -> float:
    """Return the largest relative error of one rounding in the precision of `array`."""
    return float(np.finfo(array.dtype).eps) / 2
