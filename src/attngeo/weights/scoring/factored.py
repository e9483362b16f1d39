"""Scores of M = W_q W_kᵀ from its factors: the r×r products are enough, a larger d×d form is never made.

Factors are kept transposed, `[r, d]`, the way checkpoints store them. Large ones are multiplied in their own
precision; an estimate of the rounding error decides whether that was enough, and what it does not vouch for is
done again in float64, and at last from QR factors, which lose no more than the dense form would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attngeo.io.threads import each
from attngeo.weights.scoring.products import (
    BLOCK,
    Doubles,
    Floats,
    inner,
    product,
    quadratic,
    spread,
    squared,
    symmetric_product,
    traced,
)

GAMMA = 2.0  # the threshold is mean + γ·std
TRUSTED = 2e-6 / 3  # the estimate below was never found more than 3 times too small where it is this large
SMALL = 2**24  # multiply-adds (d r²) up to which everything is done in float64
NOTHING = 1e-12  # an excess over the threshold this small, relative to it, is rounding


@dataclass(frozen=True, eq=False)
class Factors:
    """One side (all queries, or one key) of n forms of one shape, with its Grams."""

    w: Floats  # [n, r, d]
    summands: Floats | None = None  # [m, …] whose sum is w, rounded: the only one of its n, kept for more digits

    @cached_property
    def gram(self) -> Floats:
        """W Wᵀ of each, `[n, r, r]`."""
        n, r, d = self.w.shape
        if n == 1 and r > BLOCK:
            return symmetric_product(self.w[0])[None]
        return np.stack(each(lambda w: w @ w.T, self.w, d * r * r))  # numpy sends w @ w.T to syrk, at half the cost

    def __getitem__(self, part: slice) -> Factors:
        """Some of the n, sharing weights and Grams."""
        return self._sharing(Factors(self.w[part], self.summands), part)

    def without_summands(self) -> Factors:
        """The same, sharing weights and Grams but keeping nothing else in memory."""
        return self._sharing(Factors(self.w), slice(None))

    def _sharing(self, factors: Factors, part: slice) -> Factors:
        if "gram" in self.__dict__:
            factors.__dict__["gram"] = self.gram[part]
        return factors

    def energy(self) -> float:
        """Σ W², over all of them."""
        if "gram" in self.__dict__:
            return float(np.einsum("naa->", self.gram, dtype=np.float64))
        return sum(float(np.vdot(w, w)) for w in self.w)

    @property
    def small(self) -> bool:
        """Whether float64 costs nothing worth saving."""
        _, r, d = self.w.shape
        return bool(d * r * r <= SMALL)

    def double(self) -> Factors:
        """The same in float64; a sum is made again, its rounding may be all that is wrong with the scores."""
        if self.w.dtype == np.float64:
            return self
        if self.summands is not None:
            return Factors(self.summands.sum(0, dtype=np.float64).reshape(self.w.shape))
        return Factors(self.w.astype(np.float64))


@dataclass(frozen=True, eq=False)
class Scores:
    """What is known of one form; NaN where there is no score."""

    symmetry: float
    directionality: float
    norm: float
    rows: Doubles  # [d_q] ‖M_i·‖
    columns: Doubles  # [d_k] ‖M_·j‖
    error: float = 0.0  # estimated, of the worse of the two scores


def pair(query: Factors, key: Factors, *, gamma: float = GAMMA) -> Iterator[Scores]:
    """Scores of each query with the one key; the form of a zero factor has none."""
    if query.small or query.w.dtype != key.w.dtype:
        query, key = query.double(), key.double()
    step = together(query)
    for start in range(0, len(query.w), step):
        some = query[start : start + step]
        with np.errstate(over="ignore", invalid="ignore"):  # such a result is not trusted and not kept
            found = estimated(some, key, gamma)
        for i, scores in enumerate(found):
            yield scores if scores.error <= TRUSTED else in_double(some[i : i + 1], key, gamma)


def together(query: Factors) -> int:
    """How many heads go into one multiplication: several, as long as they are narrow."""
    return max(1, 2 * BLOCK // int(query.w.shape[1]))


def in_double(query: Factors, key: Factors, gamma: float) -> Scores:
    """One form with its factors scaled to 1, from float64 Grams where they do, else from QR factors."""
    scales = [float(np.abs(side.w).max()) for side in (query, key)]
    if 0.0 in scales:
        return nothing(query.w.shape[2], key.w.shape[2])
    query, key = (Factors(side.double().w / scale) for side, scale in zip((query, key), scales, strict=True))
    (scores,) = estimated(query, key, gamma)
    if not scores.error <= TRUSTED:
        scores = from_qr(query.w[0].T, key.w[0].T, gamma)
    scale = scales[0] * scales[1]
    return Scores(
        scores.symmetry, scores.directionality, scale * scores.norm, scale * scores.rows, scale * scores.columns
    )


def estimated(query: Factors, key: Factors, gamma: float) -> list[Scores]:
    """Scores with an estimate of their error, from the smaller matrices: the Grams [r, r], or the form [d_q, d_k]."""
    return from_dense(query, key, gamma) if wide(query, key) else from_grams(query, key, gamma)


def wide(query: Factors, key: Factors) -> bool:
    """Whether the form is no larger than the Grams."""
    return bool(query.w.shape[1] >= max(query.w.shape[2], key.w.shape[2]))


def nothing(d_query: int, d_key: int) -> Scores:
    """A form that is zero: no direction, so no score."""
    return Scores(math.nan, math.nan, 0.0, np.zeros(d_query), np.zeros(d_key))


def from_grams(query: Factors, key: Factors, gamma: float) -> list[Scores]:
    """tr(MM) = Σ C_ab C_ba, ‖M‖² = Σ (G_q)_ab (G_k)_ab, ρ² = diag(W_q G_k W_qᵀ), κ² = diag(W_k G_q W_kᵀ)."""
    w_query, w_key, gram_query, gram_key = query.w, key.w[0], query.gram, key.gram[0]
    n, r, d = w_query.shape
    cross = product(w_query.reshape(n * r, d), w_key.T).reshape(n, r, r) if d == w_key.shape[1] else None  # C
    columns = np.sqrt(quadratic(gram_query, w_key))  # [n, d_k]
    found = []
    for i in range(n):
        rows = np.sqrt(quadratic(gram_key[None], w_query[i])[0])  # [d_q]
        norm2 = inner(gram_query[i], gram_key)
        if not in_range(norm2, query.w):
            found.append(Scores(math.nan, math.nan, 0.0, rows, columns[i], math.inf))
            continue
        score, leverage = direct(rows, columns[i], gamma)
        # Each entry of a product of W's is off by about one rounding of ‖w_a‖‖w_b‖, independently of the others; by
        # several where one row outweighs the rest, since every later term is then rounded at that row's size.
        unit = float(np.finfo(w_query.dtype).eps) / 2 * (1 + 5 * math.sqrt(max(weight(rows), weight(columns[i]))))
        q2, k2 = gram_query[i].diagonal().astype(np.float64), gram_key.diagonal().astype(np.float64)  # [r]
        cancelled = max(1.0, float(q2 @ k2) / norm2)  # how much larger the terms of ρ² are than their sum
        error, symmetry = unit * cancelled * leverage, math.nan
        if cross is not None:
            symmetry = bounded(inner(cross[i], cross[i].T) / norm2)
            in_trace = 4 * spread(cross[i], k2, q2)
            in_norm = 2 * spread(gram_query[i], k2, k2) + 2 * spread(gram_key, q2, q2)
            error = max(error, unit * math.sqrt(in_trace + symmetry**2 * in_norm) / norm2)
        found.append(Scores(symmetry, score, math.sqrt(norm2), rows, columns[i], error))
    return found


def from_dense(query: Factors, key: Factors, gamma: float) -> list[Scores]:
    """The same from M itself, `[d_q, d_k]`: where r ≥ d it is no larger than the Grams, and one product makes it."""
    w_key = key.w[0]
    found = []
    for w_query in query.w:
        form = product(w_query.T, w_key)  # [d_q, d_k]
        row_squares, column_squares = squared(form), squared(form.T)  # [d_q], [d_k]
        norm2 = float(row_squares.sum())
        rows, columns = np.sqrt(row_squares), np.sqrt(column_squares)
        if not in_range(norm2, query.w):
            found.append(Scores(math.nan, math.nan, 0.0, rows, columns, math.inf))
            continue
        score, leverage = direct(rows, columns, gamma)
        symmetry = bounded(traced(form) / norm2) if len(rows) == len(columns) else math.nan
        # The errors of M's entries are independent, so a norm over many of them has less.
        q2, k2 = (np.einsum("rd,rd->r", w, w) for w in (w_query, w_key))
        cancelled = math.sqrt(max(1.0, float(q2 @ k2) / norm2))
        averaged = min(1.0, 10 * math.sqrt(max(weight(rows), weight(columns))))
        error = float(np.finfo(form.dtype).eps) / 2 * cancelled * averaged * max(leverage, 2.0)
        found.append(Scores(symmetry, score, math.sqrt(norm2), rows, columns, error))
    return found


def from_qr(query: Doubles, key: Doubles, gamma: float) -> Scores:
    """Scores of one form from W_q = U_q R_q, W_k = U_k R_k: M = U_q N U_kᵀ with N = R_q R_kᵀ, nothing squared."""
    (u_query, r_query), (u_key, r_key) = np.linalg.qr(query), np.linalg.qr(key)  # [d, r], [r, r]
    n = r_query @ r_key.T
    norm = float(np.linalg.norm(n))
    if norm <= 1e-14 * np.linalg.norm(r_query) * np.linalg.norm(r_key):
        return nothing(len(query), len(key))  # the product cancels to rounding
    rows, columns = np.linalg.norm(query @ r_key.T, axis=1), np.linalg.norm(key @ r_query.T, axis=1)
    symmetry = math.nan
    if len(query) == len(key):
        turned = n @ (u_key.T @ u_query)
        symmetry = bounded(inner(turned, turned.T) / norm**2)
    return Scores(symmetry, direct(rows, columns, gamma)[0], norm, rows, columns)


def direct(rows: Doubles, columns: Doubles, gamma: float) -> tuple[float, float]:
    """(R − C)/(R + C), 0 where nothing stands out, and how far it moves when every norm errs by one unit."""
    (above_rows, lever_rows), (above_columns, lever_columns) = excess(rows, gamma), excess(columns, gamma)
    above = above_rows + above_columns
    if not above > 0:
        return (0.0 if above == 0 else math.nan), math.inf  # nothing stands out: to be confirmed
    return (above_rows - above_columns) / above, math.hypot(lever_rows, lever_columns) / above


def excess(norms: Doubles, gamma: float) -> tuple[float, float]:
    """Σ (ρ − t) over ρ > t = mean + γ·std (unbiased), and the rms error it inherits from unit relative errors."""
    if len(norms) < 2:
        return 0.0, 0.0  # one row has no spread to stand out from
    threshold = float(norms.mean() + gamma * norms.std(ddof=1))
    out = norms[norms - threshold > NOTHING * threshold]
    lever = float(out @ out) + (len(out) * threshold) ** 2 / len(norms)
    return float((out - threshold).sum()), math.sqrt(lever)


def variation(norms: Doubles) -> float:
    """std/mean (unbiased) of norms [d]: 0 where all are as long, NaN where there are none to compare."""
    mean = float(norms.mean())
    return float(norms.std(ddof=1)) / mean if mean > 0 and len(norms) > 1 else math.nan


def in_range(norm2: float, w: Floats) -> bool:
    """Whether ‖M‖² is so far from the ends of w's precision that none of its terms matters and is lost there."""
    limits = np.finfo(w.dtype)
    return bool(float(limits.tiny / limits.eps) * w[0].size < norm2 < math.inf)


def weight(norms: Doubles) -> float:
    """Σ ρ⁴/(Σ ρ²)²: 1/d where all rows weigh the same, 1 where one row is everything."""
    squares = norms * norms
    return float(squares @ squares) / float(squares.sum()) ** 2


def bounded(symmetry: float) -> float:
    """A symmetry that rounding put outside [−1, 1], back inside."""
    return math.copysign(1.0, symmetry) if abs(symmetry) > 1 else symmetry
