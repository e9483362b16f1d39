"""Scores of one attention layer: of each head and of the layer form, plain or with the preceding norm folded in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attngeo.arrays import AnyFloats, contiguous
from attngeo.io.threads import WORTH_A_THREAD, each
from attngeo.weights.layout.layer import Layer, Norm
from attngeo.weights.scoring.factored import (
    PLAIN,
    Figures,
    FormScores,
    dense_is_smaller,
    forms_per_product,
    score_forms,
)
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.rotary.average import RotarySums, pair_factors, turning_sums, within_pairs
from attngeo.weights.scoring.rotary.heads import NO_ROTATION, RotaryScores
from attngeo.weights.scoring.rounding_error import TRUSTED, concentration, directionality_with_sensitivity

FOLDED_AT_ONCE = 2**18  # entries that a norm is folded into at once: they stay in the cache


@dataclass(frozen=True, eq=False)
class LayerFactors:
    """The factors of all heads of one layer."""

    query: Factors  # [H, r, d_q]
    key: Factors  # [G, r, d_k]

    @property
    def groups(self) -> int:
        """G, the number of key heads."""
        return len(self.key.w)

    @property
    def group_size(self) -> int:
        """The number of query heads that share one key head."""
        return len(self.query.w) // len(self.key.w)

    @property
    def work(self) -> int:
        """Multiply-adds of one product per head."""
        return int(math.prod(self.query.w.shape) * self.query.w.shape[1])

    @cached_property
    def heads(self) -> tuple[Factors, Factors]:
        """Queries and keys in the precision in which heads are scored, so that all scores share their Gram matrices."""
        return (self.query.double(), self.key.double()) if self.query.small else (self.query, self.key)

    @property
    def grouped_query(self) -> AnyFloats:
        """The queries of each key head, `[G, H/G, r, d_q]`."""
        return self.query.w.reshape(len(self.key.w), self.group_size, *self.query.w.shape[1:])

    @cached_property
    def layer_query(self) -> Factors:
        """The left factor of the layer form M = Σ_g (Σ_{h in g} W_q^h)(W_k^g)ᵀ, `[1, G r, d_q]`."""
        grouped = self.grouped_query
        h, r, d = self.query.w.shape
        if self.group_size == 1:
            return Factors(grouped.reshape(1, h * r, d))
        summed = np.stack(each(lambda heads: heads.sum(0), grouped, grouped.size))  # [G, r, d]
        total = Factors(summed.reshape(1, -1, d), grouped.swapaxes(0, 1))
        # Heads that cancel each other leave mostly float32 rounding, so their sum needs more digits. The comparison
        # also holds where both sides underflow to 0 or overflow.
        return total.double() if total.energy() <= 0.01 * self.query.energy() else total

    @cached_property
    def layer_key(self) -> Factors:
        """The right factor of the layer form, `[1, G r, d_k]`."""
        return Factors(self.key.w.reshape(1, -1, self.key.w.shape[2]))


def layer_factors(weights: Layer) -> LayerFactors:
    """Return the factors of a layer; they share memory with `weights` if the checkpoint stores [out, in]."""
    query, key = (contiguous(w.swapaxes(1, 2)) for w in (weights.query, weights.key))
    return LayerFactors(Factors(query), Factors(key))


# Memory of folded factors that are no longer used, by shape: first touching new memory takes longer than folding.
Memory = dict[tuple[str, tuple[int, ...]], AnyFloats]


def fold_norm(plain: LayerFactors, norm: Norm, memory: Memory | None = None) -> LayerFactors:
    """Return the factors with the norm before the attention folded in: W → C diag(g) W, with C only for LayerNorm.

    A factor whose entries are extremely small or large is also multiplied by a power of 2, so that the product is
    exact in float32. The scores do not depend on that, the norm of the form does.

    memory: if given, the result uses the memory of earlier results that were made with it
    """
    memory = {} if memory is None else memory
    exponents = [_extreme_exponent(side, norm) for side in (plain.query, plain.key)]
    query, key = (
        Factors(_folded(side.w, norm, exponent, _taken(name, side.w, memory)))
        for name, side, exponent in zip(("query", "key"), (plain.query, plain.key), exponents, strict=True)
    )
    folded = LayerFactors(query, key)
    if plain.group_size > 1 and plain.layer_query.w.dtype == np.float32 and not exponents[0]:
        # Folding is linear, so the sum of the heads of each group need not be computed again.
        out = _taken("layer", plain.layer_query.w, memory)
        total = Factors(_folded(plain.layer_query.w, norm, 0, out), folded.grouped_query.swapaxes(0, 1))
        folded.__dict__["layer_query"] = total
    return folded


def _extreme_exponent(side: Factors, norm: Norm) -> int:
    """Return the exponent of the largest entry of the folded factors, 0 for those of any ordinary model."""
    gain, energy = float(np.abs(norm.gain).max()), side.energy()
    for largest in (math.sqrt(energy), math.sqrt(energy / side.w.size)) if 0 < energy < math.inf else (0.0,):
        if not 2.0**-30 < largest * gain < 2.0**30:  # between these two bounds lies the largest entry
            _, exponent = math.frexp(float(np.abs(side.w).max()) * gain)
            return exponent if abs(exponent) > 40 else 0
    return 0


def _taken(name: str, w: AnyFloats, memory: Memory) -> AnyFloats:
    """Return float32 memory of the shape of w."""
    key = name, w.shape
    if key not in memory:
        memory[key] = np.empty(w.shape, np.float32)
    return memory[key]


def _folded(w: AnyFloats, norm: Norm, exponent: int, out: AnyFloats) -> AnyFloats:
    """Return `out`: factors `[n, r, d]` times the gain `[d]` and 2^−exponent, centred over d if the norm centres."""
    rows = max(1, FOLDED_AT_ONCE // w.shape[2])

    def fold(span: tuple[int, slice]) -> None:
        some = w[span]
        if exponent:
            some = some.astype(np.float64) * 2.0**-exponent
        if not norm.centred:
            np.multiply(some, norm.gain, out=out[span], casting="same_kind")
            return
        scaled = some.astype(np.float64) * norm.gain  # float64, because subtracting the mean may cancel
        out[span] = scaled - scaled.mean(1, keepdims=True)

    spans = [(i, slice(j, j + rows)) for i in range(len(w)) for j in range(0, w.shape[1], rows)]
    each(fold, spans, WORTH_A_THREAD if w.size > FOLDED_AT_ONCE else 0)
    return out


def head_scores(
    query: Factors, key: Factors, partner: Sequence[int] | None = None, figures: Figures = PLAIN
) -> list[FormScores]:
    """Return the scores of every head.

    query:   [H, r, d_q]
    key:     [G, r, d_k]
    partner: if given, the queries of group g are paired with the keys of group partner[g] instead of their own
    """
    heads, r, d = query.w.shape
    group_size, step = heads // len(key.w), forms_per_product(query)
    if not dense_is_smaller(query, key):
        query.gram, key.gram  # noqa: B018  # computed once, then shared by all tasks
    tasks = [
        (slice(start, min(start + step, (group + 1) * group_size)), slice(other, other + 1))
        for group, other in enumerate(range(len(key.w)) if partner is None else partner)
        for start in range(group * group_size, (group + 1) * group_size, step)
    ]

    def work(task: tuple[slice, slice]) -> list[FormScores]:
        return list(score_forms(query[task[0]], key[task[1]], figures))

    return [scores for some in each(work, tasks, min(step, group_size) * d * r * r) for scores in some]


def layer_scores(query: Factors, key: Factors, figures: Figures = PLAIN, groups: int = 1) -> FormScores:
    """Return the scores of a layer form from its two factors, `[1, G r, d_q]` and `[1, G r, d_k]`.

    groups: G; the scores under rotary position embedding need it
    """
    (scores,) = score_forms(query, key, replace(figures, rotary=None, cross=figures.rotary is not None))
    if figures.rotary is None:
        return scores
    cross = scores.cross  # [G r, G r]
    if query.small or query.w.dtype != key.w.dtype:
        query, key, cross = query.double(), key.double(), None
    rotary, error = _layer_rotary_scores(query, key, figures, groups, cross)
    if not error <= TRUSTED:
        rotary, _ = _layer_rotary_scores(query.double(), key.double(), figures, groups)
    return replace(scores, rotary=rotary, cross=None)


def _layer_rotary_scores(
    query: Factors, key: Factors, figures: Figures, groups: int, cross: AnyFloats | None = None
) -> tuple[RotaryScores, float]:
    """Return the scores of a layer form averaged over all offsets, and an estimate of their error.

    Only products within a pair are needed, 2/r of those of the plain scores. What does not rotate is a form of its own.

    cross: [G r, G r], if the plain scores computed it; all products of the factors within a pair are then known
    """
    assert figures.rotary is not None
    rotary = figures.rotary
    w_query, w_key = (side.w.reshape(groups, -1, side.w.shape[2]) for side in (query, key))  # [G, r, d]
    work = 20 * groups**2 * (w_query.shape[2] + w_key.shape[2]) // 2  # multiply-adds of one pair
    at_once = max(1, WORTH_A_THREAD // work)
    known = [] if cross is None else [query.gram[0], key.gram[0], cross]

    def of_pairs(start: int) -> RotarySums[AnyFloats]:
        turning = rotary.turning[start : start + at_once]  # [n, 2]
        some_query, some_key = (pair_factors(w, turning) for w in (w_query, w_key))  # [n, 2G, d]
        products = [within_pairs(product, turning, groups) for product in known]  # [n, 2G, 2G]
        # A few terms are added in float32, not all.
        return turning_sums(some_query, some_key, rotary.factor, products).double()

    with np.errstate(over="ignore", invalid="ignore"):  # such a result has no finite error and is not kept
        parts = each(of_pairs, range(0, len(rotary.turning), at_once), len(rotary.turning) * work)
    if len(fixed := rotary.fixed(w_query.shape[1])):
        scale = rotary.scale(w_query.shape[1])[fixed, None].astype(np.float32)
        parts.append(_fixed_sums(w_query[:, fixed] * scale, w_key[:, fixed] * scale, figures))
    total = sum(parts[1:], parts[0])
    average = total.average()
    if not average.rows.any() and w_query.dtype == np.float64:
        return NO_ROTATION, 0.0
    rows, columns = (norms.astype(np.float64, copy=False) for norms in (average.rows, average.columns))
    limits, square = np.finfo(w_query.dtype), float(total.squared_norm)
    if not float(limits.tiny / limits.eps) * w_query.size < square < math.inf:
        return NO_ROTATION, math.inf
    direction, sensitivity = directionality_with_sensitivity(rows, columns, figures.gamma)
    unit = float(limits.eps) / 2 * (1 + 5 * math.sqrt(max(concentration(rows), concentration(columns))))
    cancellation = max(1.0, float(total.energy) / square)
    return RotaryScores(float(average.symmetry), direction), unit * cancellation * max(sensitivity, 1.0)


def _fixed_sums(query: AnyFloats, key: AnyFloats, figures: Figures) -> RotarySums[AnyFloats]:
    """Return what dimensions that do not rotate add, from their factors `[G, u, d]`."""
    sides = [Factors(w.reshape(1, -1, w.shape[2])) for w in (query, key)]
    (plain,) = score_forms(sides[0], sides[1], Figures(figures.gamma))
    square = np.asarray(plain.norm**2)
    trace = np.asarray(0.0 if plain.norm == 0 and query.shape[2] == key.shape[2] else plain.symmetry * plain.norm**2)
    energy = np.asarray(0.0)  # the scores of this form are precise, whatever cancels
    return RotarySums(trace, square, np.square(plain.row_norms), np.square(plain.column_norms), energy)
