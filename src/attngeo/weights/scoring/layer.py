"""Scores of one attention layer: of each head and of the whole layer, plain, re-paired and norm-folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attngeo.io.threads import each
from attngeo.weights.layout.attention_weights import AttentionWeights, Norm
from attngeo.weights.scoring.factored import Factors, Scores, pair, together, wide
from attngeo.weights.sources.checkpoint import FloatArray

SEED = 0


@dataclass(frozen=True, eq=False)
class Sides:
    """The factors of one layer, head by head."""

    query: Factors  # [H, r, d_q]
    key: Factors  # [G, r, d_k]

    @property
    def group_size(self) -> int:
        """Query heads that share one key head."""
        return len(self.query.w) // len(self.key.w)

    @cached_property
    def heads(self) -> tuple[Factors, Factors]:
        """Both in the precision their heads are scored in, so that what scores share is computed once."""
        return (self.query.double(), self.key.double()) if self.query.small else (self.query, self.key)

    @cached_property
    def layer_query(self) -> Factors:
        """Left factor of the layer form M = Σ_g (Σ_{h in g} W_q^h)(W_k^g)ᵀ, `[1, G r, d_q]`."""
        h, r, d = self.query.w.shape
        grouped = self.query.w.reshape(-1, self.group_size, r, d)  # [G, H/G, r, d_q]
        if self.group_size == 1:
            return Factors(grouped.reshape(1, h * r, d))
        summed = Factors(grouped.sum(1).reshape(1, -1, d), grouped.swapaxes(0, 1))
        # Heads that cancel each other leave nothing but float32 roundings: then the sum itself needs more digits.
        return summed.double() if summed.energy() < 0.01 * self.query.energy() else summed

    @cached_property
    def layer_key(self) -> Factors:
        """Right factor of the layer form, `[1, G r, d_k]`."""
        return Factors(self.key.w.reshape(1, -1, self.key.w.shape[2]))


def sides(weights: AttentionWeights) -> Sides:
    """Factors of a layer, without a copy where the checkpoint stores [out, in]."""
    query, key = (np.ascontiguousarray(w.swapaxes(1, 2)) for w in (weights.query, weights.key))
    return Sides(Factors(query), Factors(key))


def behind_norm(plain: Sides, norm: Norm) -> Sides:
    """Factors with the norm before the attention folded in: W → C diag(g) W, C only for LayerNorm."""
    return Sides(*(Factors(np.stack([fold(w, norm) for w in side.w])) for side in (plain.query, plain.key)))


def fold(w: FloatArray, norm: Norm) -> FloatArray:
    """One head's factor [r, d] times the gain, centred over d if the norm centres."""
    if not norm.centred:
        return np.multiply(w, norm.gain, dtype=np.float32)
    scaled = w.astype(np.float64) * norm.gain  # subtracting the mean may cancel
    centred: FloatArray = (scaled - scaled.mean(1, keepdims=True)).astype(np.float32)
    return centred


def head_scores(query: Factors, key: Factors, partner: Sequence[int] | None = None) -> list[Scores]:
    """Scores of every head; with `partner`, the queries of group g meet the keys of group partner[g]."""
    heads, r, d = query.w.shape
    size, step = heads // len(key.w), together(query)
    if not wide(query, key):
        query.gram, key.gram  # noqa: B018  # once for all who share them
    tasks = [
        (slice(start, min(start + step, (g + 1) * size)), slice(other, other + 1))
        for g, other in enumerate(range(len(key.w)) if partner is None else partner)
        for start in range(g * size, (g + 1) * size, step)
    ]
    found = each(lambda task: list(pair(query[task[0]], key[task[1]])), tasks, min(step, size) * d * r * r)
    return [scores for some in found for scores in some]


def layer_scores(query: Factors, key: Factors) -> Scores:
    """Scores of a layer form from its two factors."""
    (scores,) = pair(query, key)
    return scores


def derangement(groups: int) -> list[int]:
    """Another group for every group (two at least), the same at every call: a random cycle through all of them."""
    cycle = np.random.default_rng([SEED, groups]).permutation(groups)
    partner = np.empty(groups, dtype=int)
    partner[cycle] = np.roll(cycle, 1)
    return [int(g) for g in partner]
