"""Directionality and dominance: whether the columns or the rows of a bilinear form dominate, from their norms.

    t    = mean + γ·std                  threshold, over all rows or over all columns; std unbiased, γ = 2
    R    = Σ (ρ_i − t) over ρ_i > t      excess of the row norms; C likewise for the column norms
    d(M) = (R − C)/(R + C)               negative: columns (the context side) dominate; 0 if R + C = 0

    dominance(M) = log(CV_rows / CV_columns)        CV = std/mean of the norms, std unbiased

Dominance is negative where columns are more unequal, like the directionality. It uses every norm, not only the few
above a threshold, so its spread for random factors is small: about 1/√d.

All functions accept NumPy arrays or torch tensors with any number of leading batch axes.
"""

from __future__ import annotations

import numpy as np

from attngeo.arrays import Array, namespace

GAMMA = 2.0
ROUNDING = 1e-12  # two norms, or two sums of them, that differ by less than this fraction do so by rounding


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
    score: Array = directionality_of_excess(excess(rows, gamma), excess(columns, gamma))  # [...]
    return score


def directionality_of_excess(row_excess: Array, column_excess: Array) -> Array:
    """Return d(M) = (R − C)/(R + C) from the excess R of the rows and C of the columns, `[...]`; 0 where R = C."""
    xp = namespace(row_excess)
    total, difference = row_excess + column_excess, row_excess - column_excess
    none = xp.abs(difference) <= ROUNDING * total
    score: Array = xp.where(none, 0.0, difference / xp.where(none, 1.0, total))  # [...]
    return score


def excess(norms: Array, gamma: float = GAMMA) -> Array:
    """Return Σ (ρ − t) over the norms `[..., d]` above their threshold t, as `[...]`; 0 for a single norm."""
    if norms.shape[-1] < 2:
        none: Array = 0.0 * norms.sum(-1)
        return none
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

    It is 0 where all norms are equal, and NaN where they are all 0 or where there is only one.

    >>> float(coefficient_of_variation(np.ones(3)))
    0.0
    """
    xp = namespace(norms)
    mean = norms.mean(-1)  # [...]
    if norms.shape[-1] < 2:
        unknown: Array = np.nan * mean
        return unknown
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

    It is NaN where a CV is 0 (all norms are equal, up to rounding) or does not exist (one norm, or all norms 0).

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
