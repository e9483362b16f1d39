"""`score_forms`: all scores of a batch of forms M = W_q W_kᵀ from their factors, for NumPy and torch alike.

`score_precisely` chooses the precision: float64 where the factors are small or in float64; otherwise float32 products
with float64 sums, and float64 again for the forms whose float32 products cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NamedTuple

import numpy as np

from attngeo.arrays import Array, is_torch, namespace
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.formulas import (
    EffectiveRanks,
    bounded_ratio,
    coefficient_of_variation,
    dense_norms,
    directionality,
    dominance,
    double_sum,
    effective_ranks,
    effective_ranks_of_dense,
    excess,
    gram_matrix,
    inner,
    product,
    row_norms,
    self_attending,
)
from attngeo.weights.scoring.rotary import rotary_average

SMALL = 2**24  # multiply-adds of a product (d r²) up to which float32 would save no time worth having
RANGE = 1e-20, 1e20  # of ‖M‖² in float32, outside of which terms may have left the range of that type
CANCELLED = 2.0  # how much larger than their float32 sum terms may be
LEAST_EXCESS = 0.1  # R + C in units of the largest norm; less of it is made of the last digits of float32
RANK_ERROR = 1e-3  # relative, of an effective rank in float32
LOST = 1e6  # the same as CANCELLED, in float64
ZERO = 1e-14  # ‖M‖ relative to ‖W_q‖‖W_k‖ below which M is zero up to rounding


@dataclass(frozen=True, eq=False)
class Scores(Generic[Array]):
    """Scores of a batch of forms, each `[...]`; NaN where a score does not exist or was not requested."""

    symmetry: Array
    directionality: Array
    dominance: Array
    self_attending: Array
    rank_symmetric: Array
    rank_skew: Array
    norm: Array  # ‖M‖
    row_spread: Array  # std/mean of the row norms
    column_spread: Array
    symmetry_rope: Array  # averaged over all offsets of the rotary position embedding, like the next two
    directionality_rope: Array
    dominance_rope: Array
    row_norms: Array  # [..., d_q], ‖M_i·‖
    column_norms: Array  # [..., d_k], ‖M_·j‖
    alpha: Array  # [..., n], what each rotating pair of a head contributes, as in `rotary_average`
    beta: Array  # [..., n]
    energy: Array  # [..., n]
    cancellation: Array  # the sum of ‖q_a‖²‖k_a‖² over the columns of the factors, relative to ‖M‖²
    in_float32: Array  # booleans: float32 products are precise enough

    def each(self, change: Callable[..., Any], *others: Scores[Any]) -> Scores[Any]:
        """Return the scores whose arrays a function makes from those of these scores and of others."""
        return Scores(**{f.name: change(*(getattr(one, f.name) for one in (self, *others))) for f in fields(self)})

    def scaled(self, scale: Any) -> Scores[Array]:
        """Return the scores of the forms times `scale`, `[..., 1]`."""
        wide = {name: getattr(self, name) * scale for name in ("row_norms", "column_norms", "alpha", "beta")}
        return replace(self, **wide, norm=self.norm * scale[..., 0], energy=self.energy * scale**2)


def score_forms(
    query: Array, key: Array, rotary: RotaryPairs | None = None, *, groups: int = 1, ranks: bool = False
) -> Scores[Array]:
    """Return every score of the forms M = W_q W_kᵀ of a batch.

    query:  [..., d_q, r]; of a layer form the G key heads side by side, the queries that read one of them summed
    key:    [..., d_k, r]
    rotary: the rotary pairs of a head; None: nothing rotates
    groups: G, 1 for heads
    ranks:  also the effective ranks, which need four further products

    >>> w = np.random.default_rng(0).normal(size=(1, 64, 8))
    >>> float(score_forms(w, w).symmetry[0].round(6))
    1.0
    """
    smaller = query.shape[-1] < max(query.shape[-2], key.shape[-2])
    rows, columns, square, terms, core, of_ranks = (_sums_of_products if smaller else _sums_of_dense)(query, key, ranks)
    xp = namespace(square)
    direction, decided = _direction(rows, columns)
    cancellation = terms / square.clip(1e-300)
    precise = decided & (square > RANGE[0]) & (square < RANGE[1]) & (cancellation < CANCELLED)
    missing, no_pairs = square * np.nan, rows[..., :0]  # [...], [..., 0]
    scores = Scores(
        symmetry=missing if core is None else bounded_ratio(inner(core, core.mT), square),
        directionality=xp.where(square > 0, direction, np.nan),
        dominance=dominance(rows, columns),
        self_attending=missing if core is None else self_attending(_trace(core), square, min(query.shape[-2:])),
        rank_symmetric=missing if of_ranks is None else of_ranks.symmetric,
        rank_skew=missing if of_ranks is None else of_ranks.skew,
        norm=xp.sqrt(square.clip(0.0)),
        row_spread=coefficient_of_variation(rows),
        column_spread=coefficient_of_variation(columns),
        **dict.fromkeys(("symmetry_rope", "directionality_rope", "dominance_rope"), missing),
        row_norms=rows,
        column_norms=columns,
        **dict.fromkeys(("alpha", "beta", "energy"), no_pairs),
        cancellation=cancellation,
        in_float32=precise if of_ranks is None else precise & (of_ranks.error < RANK_ERROR),
    )
    return scores if rotary is None else _with_rotary(scores, query, key, rotary, groups)


def _with_rotary(scores: Scores[Array], query: Array, key: Array, rotary: RotaryPairs, groups: int) -> Scores[Array]:
    """Return the scores with those under rotary position embedding."""
    average = rotary_average(query, key, rotary, groups)
    direction, decided = _direction(average.rows, average.columns)
    return replace(
        scores,
        symmetry_rope=average.symmetry,
        directionality_rope=namespace(direction).where(average.rows.any(-1), direction, np.nan),
        dominance_rope=dominance(average.rows, average.columns),
        alpha=average.alpha,
        beta=average.beta,
        energy=average.energy,
        in_float32=scores.in_float32 & decided & (average.cancellation < CANCELLED),
    )


def _direction(rows: Any, columns: Any) -> tuple[Any, Any]:
    """Return the directionality, and whether the excess that it compares is more than the last digits of float32."""
    xp = namespace(rows)
    largest = xp.maximum(xp.amax(rows, -1), xp.amax(columns, -1))
    return directionality(rows, columns), excess(rows) + excess(columns) > LEAST_EXCESS * largest


class _Sums(NamedTuple):
    """What the scores of a batch of forms are computed from."""

    rows: Any  # [..., d_q], norms
    columns: Any  # [..., d_k]
    square: Any  # [...], ‖M‖²
    terms: Any  # [...], Σ‖q_a‖²‖k_a‖²
    core: Any  # [..., n, n], whose powers have the traces of those of M; None where M is not square
    ranks: EffectiveRanks[Any] | None


def _sums_of_products(query: Any, key: Any, ranks: bool) -> _Sums:
    """Return the sums from the r×r products of the factors."""
    gram_query, gram_key = gram_matrix(query), gram_matrix(key)  # [..., r, r]
    cross = product(key.mT, query) if query.shape[-2] == key.shape[-2] else None  # [..., r, r]
    return _Sums(
        rows=row_norms(query, gram_key),
        columns=row_norms(key, gram_query),
        square=inner(gram_query, gram_key),
        terms=double_sum(_diagonal(gram_query) * _diagonal(gram_key), -1),
        core=cross,
        ranks=effective_ranks(cross, gram_query, gram_key) if ranks and cross is not None else None,
    )


def _sums_of_dense(query: Any, key: Any, ranks: bool) -> _Sums:
    """Return the sums from M itself, which is no larger than the products of the factors where r ≥ d."""
    form = product(query, key.mT)  # [..., d_q, d_k]
    square = form.shape[-1] == form.shape[-2]
    return _Sums(
        *dense_norms(form),
        square=inner(form, form),
        terms=double_sum(double_sum(query * query, -2) * double_sum(key * key, -2), -1),
        core=form if square else None,
        ranks=effective_ranks_of_dense(form) if ranks and square else None,
    )


def _diagonal(matrix: Any) -> Any:
    return matrix.diagonal(0, -2, -1)


def _trace(matrix: Any) -> Any:
    return double_sum(_diagonal(matrix), -1)


# ---- precision


def score_precisely(
    query: Array, key: Array, rotary: RotaryPairs | None = None, *, groups: int = 1, ranks: bool = False
) -> Scores[Array]:
    """Return `score_forms` in the precision that the scores need; arguments as there, with at least one batch axis.

    Weights of any scale have scores, and factors that nearly cancel lose no more digits than the dense form would. A
    float64 query with a float32 key is rounded to float32 where that is precise enough.
    """
    options: dict[str, Any] = {"rotary": rotary, "groups": groups, "ranks": ranks}
    (d, r), d_key = query.shape[-2:], key.shape[-2]
    if is_torch(query) or key.dtype != np.float32 or max(d, d_key) * r * r <= SMALL:
        return _in_float64(query, key, options)
    with np.errstate(over="ignore", invalid="ignore"):  # such a result is not precise enough and is replaced
        scores = score_forms(query.astype(np.float32, copy=False), key, **options)
    return _replaced(scores, ~scores.in_float32, query, key, _in_float64, options)


def _in_float64(query: Any, key: Any, options: dict[str, Any]) -> Scores[Any]:
    """Return the scores in float64, of factors divided by their largest entries so that no power leaves the range."""
    xp = namespace(query)
    query, key = (xp.asarray(w, dtype=xp.float64) for w in (query, key))
    largest = [xp.amax(xp.abs(w), (-2, -1))[..., None] for w in (query, key)]  # [..., 1]
    largest = [xp.where(one > 0, one, 1.0) for one in largest]
    query, key = (w / one[..., None] for w, one in zip((query, key), largest, strict=True))
    scores = score_forms(query, key, **options)
    scores = _replaced(scores, scores.cancellation > LOST, query, key, _from_better_factors, options)
    with np.errstate(over="ignore"):  # of the norm of a form so large, not of its scores
        return scores.scaled(largest[0] * largest[1])


def _from_better_factors(query: Any, key: Any, options: dict[str, Any]) -> Scores[Any]:
    """Return the plain scores from factors of the same form that do not cancel, those over offsets from the given ones.

    With the QR decompositions W_q = U_q R_q and W_k = U_k R_k, M = (U_q R_q R_kᵀ) U_kᵀ: no factor is squared.
    """
    xp = namespace(query)
    (u_query, r_query), (u_key, r_key) = xp.linalg.qr(query), xp.linalg.qr(key)
    core = r_query @ r_key.mT
    norm, size = xp.linalg.norm(core, axis=(-2, -1)), [xp.linalg.norm(w, axis=(-2, -1)) for w in (query, key)]
    core = xp.where((norm > ZERO * size[0] * size[1])[..., None, None], core, 0.0)  # zero up to rounding
    scores = score_forms(u_query @ core, u_key, ranks=options["ranks"])
    if options["rotary"] is None:
        return scores
    return _with_rotary(scores, query, key, options["rotary"], options["groups"])


def _replaced(
    scores: Scores[Any], chosen: Any, query: Any, key: Any, better: Callable[..., Scores[Any]], options: dict[str, Any]
) -> Scores[Any]:
    """Return the scores with those of the chosen forms, a mask `[...]`, computed by another function."""
    if not chosen.any():
        return scores
    xp = namespace(query)
    query, key = (xp.broadcast_to(w, (*chosen.shape, *w.shape[-2:]))[chosen] for w in (query, key))
    others = better(query, key, options)

    def put(values: Any, new: Any) -> Any:
        values = values.clone() if is_torch(values) else values.copy()
        values[chosen] = new
        return values

    return scores.each(put, others)
