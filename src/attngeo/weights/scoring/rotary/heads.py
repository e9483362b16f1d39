"""Rotary averages of heads, from the Gram matrices that their plain scores need anyway.

For one head the averaged Gram matrix P(W_kᵀW_k) is diagonal on rotated dimensions, so its norms are weighted sums of
squares and cost next to nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from attngeo.arrays import AnyFloats, Floats, Ints
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.directionality import directionality
from attngeo.weights.scoring.products import inner_product, quadratic_forms, weighted_squares
from attngeo.weights.scoring.rotary.average import rotary_average
from attngeo.weights.scoring.rounding_error import TRUSTED, directionality_with_sensitivity, gram_error
from attngeo.weights.scoring.symmetry import symmetry_ratio


@dataclass(frozen=True, eq=False)
class PairProducts:
    """What the two dimensions of each rotating pair of one head multiply to."""

    alpha: Floats  # [n], of X = W_qᵀ W_k
    beta: Floats  # [n]
    energy: Floats  # [n], tr A_ff tr B_ff


@dataclass(frozen=True, eq=False)
class RotaryScores:
    """Scores of one form averaged over all offsets; NaN where one does not exist."""

    symmetry: float = math.nan
    directionality: float = math.nan
    pairs: PairProducts | None = None  # None: not computed

    def scaled(self, scale: float) -> RotaryScores:
        """Return the scores of the form times `scale`: those of its pairs change, the others do not."""
        if self.pairs is None:
            return self
        one = self.pairs
        return replace(self, pairs=PairProducts(scale * one.alpha, scale * one.beta, scale**2 * one.energy))


NO_ROTATION = RotaryScores()


def scores_of_zero(rotary: RotaryPairs | None) -> RotaryScores:
    """Return those of a form that is zero: its pairs, unless `rotary` is None, have no energy."""
    if rotary is None:
        return NO_ROTATION
    none = np.zeros(len(rotary.turning))
    return RotaryScores(pairs=PairProducts(none, none, none))


@lru_cache(maxsize=16)
def _dimensions(rotary: RotaryPairs, size: int) -> tuple[Ints, Floats]:
    """Return the dimensions that do not rotate, `[u]`, and what multiplies each dimension, `[r]`."""
    return rotary.fixed(size), rotary.scale(size)


def averaged_product(product: AnyFloats, rotary: RotaryPairs) -> AnyFloats:
    """Return P(Z) of a product of two factors of one head, `[r, r]`, attention factor included."""
    fixed, scale = _dimensions(rotary, len(product))
    average = np.zeros_like(product)
    if len(fixed):
        average[np.ix_(fixed, fixed)] = product[np.ix_(fixed, fixed)] * np.outer(scale[fixed], scale[fixed])
    first, second = rotary.turning.T
    alpha = rotary.factor**2 / 2 * (product[first, first] + product[second, second])  # [n]
    beta = rotary.factor**2 / 2 * (product[second, first] - product[first, second])
    average[first, first] = average[second, second] = alpha
    average[second, first], average[first, second] = beta, -beta
    return average


def averaged_norms(averages: AnyFloats, w: AnyFloats, rotary: RotaryPairs) -> Floats:
    """Return the root mean squares over offsets of norms, `[n, d]`.

    averages: [n, r, r], P of the Gram matrices of the other side
    w:        [r, d]
    """
    fixed, scale = _dimensions(rotary, len(w))
    weights = averages.diagonal(0, 1, 2) * np.square(scale)  # [n, r]
    weights[:, fixed] = 0
    squares = weighted_squares(w, weights)
    if len(fixed):
        still = np.ascontiguousarray(averages[:, fixed][:, :, fixed] * np.outer(scale[fixed], scale[fixed]), w.dtype)
        squares += quadratic_forms(still, w[fixed])
    return np.sqrt(squares)


def head_rotary_scores(
    rows: Floats, columns: Floats, gram_query: AnyFloats, gram_key: AnyFloats, cross: AnyFloats | None, gamma: float
) -> tuple[RotaryScores, bool]:
    """Return the scores from averaged products, and whether they are precise enough.

    rows, columns: [d_q], [d_k], from `averaged_norms`
    gram_query, gram_key, cross: [r, r], P of the products A, B and X; cross is None where the widths differ
    """
    squared_norm = inner_product(gram_query, gram_key)
    limits = np.finfo(gram_query.dtype)
    if not float(limits.tiny / limits.eps) * gram_query.size < squared_norm < math.inf:
        return NO_ROTATION, False
    symmetry = math.nan
    if cross is not None:
        symmetry = float(symmetry_ratio(np.asarray(inner_product(cross, cross.T)), np.asarray(squared_norm)))
    direction, sensitivity = directionality_with_sensitivity(rows, columns, gamma)
    error = gram_error(rows, columns, gram_query, gram_key, cross, symmetry, squared_norm, sensitivity)
    return RotaryScores(symmetry, direction), error <= TRUSTED


def rotary_scores_in_double(query: AnyFloats, key: AnyFloats, rotary: RotaryPairs, gamma: float) -> RotaryScores:
    """Return the scores of one form with factors `[G, r, d_q]`, `[G, r, d_k]` in float64.

    Both factors are divided by their largest entry, so that no square overflows or underflows.
    """
    scales = [float(np.abs(w).max()) for w in (query, key)]
    if 0.0 in scales:
        return NO_ROTATION
    query, key = (w.astype(np.float64) / scale for w, scale in zip((query, key), scales, strict=True))
    average = rotary_average(query.swapaxes(-1, -2), key.swapaxes(-1, -2), rotary)
    if not average.rows.any():
        return NO_ROTATION
    return RotaryScores(float(average.symmetry), float(directionality(average.rows, average.columns, gamma)))


def select_pairs(products: Any, rotary: RotaryPairs) -> Any:
    """Return the entries Z_11, Z_12, Z_21, Z_22 of products `[..., r, r]` within rotating pairs, as `[..., n, 4]`."""
    first, second = rotary.turning.T
    rows = np.stack([first, first, second, second], -1)  # [n, 4]
    columns = np.stack([first, second, first, second], -1)
    return products[..., rows, columns]


def pair_products(gram_query: AnyFloats, gram_key: AnyFloats, cross: AnyFloats, factor: float) -> PairProducts:
    """Return α, β and the energy of each rotating pair of one head.

    gram_query, gram_key, cross: [n, 4], what `select_pairs` selects of A, B and X = W_qᵀW_k
    factor: the attention factor
    """
    a, b, x = (z.astype(np.float64) * factor**2 for z in (gram_query, gram_key, cross))  # [n, 4]
    energy = (a[:, 0] + a[:, 3]) * (b[:, 0] + b[:, 3])
    return PairProducts((x[:, 0] + x[:, 3]) / 2, (x[:, 2] - x[:, 1]) / 2, energy)
