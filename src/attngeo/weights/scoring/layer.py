"""Scores of one attention layer: of each head and of the layer form, plain or with the preceding norm folded in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attngeo.arrays import is_torch, namespace
from attngeo.io.threads import each
from attngeo.weights.layout.layer import Layer, Norm, layer_form_factors
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.engine import SMALL, Scores, score_precisely

AT_ONCE = 2**21  # entries of the queries multiplied at once, which bounds the memory of their products


@dataclass(frozen=True, eq=False)
class LayerFactors:
    """The factors of all forms of one layer, NumPy arrays or torch tensors."""

    query: Any  # [H, d_q, r]
    key: Any  # [G, d_k, r]

    @classmethod
    def of(cls, weights: Layer) -> LayerFactors:
        """Return the factors of a layer; they share its memory."""
        return cls(weights.query, weights.key)

    @property
    def groups(self) -> int:
        """G, the number of key heads."""
        return len(self.key)

    @property
    def group_size(self) -> int:
        """The number of query heads that share one key head."""
        return len(self.query) // len(self.key)

    @property
    def work(self) -> int:
        """Multiply-adds of one product per head."""
        h, d, r = self.query.shape
        return int(h * d * r * r)

    @property
    def heads(self) -> tuple[Any, Any]:
        """The queries and keys of all heads, in float64 where they are small."""
        small = _is_small(*self.query.shape[1:])
        query, key = (w.astype(np.float64) if small else w for w in (self.query, self.key))
        return query, key

    @cached_property
    def form(self) -> tuple[Any, Any]:
        """The factors `[d_q, G·r]` and `[d_k, G·r]` of the layer form M = Σ_g (Σ_{h in g} W_q^h)(W_k^g)ᵀ."""
        query = self.query
        if self.group_size > 1 and not is_torch(query):
            # Heads may cancel each other, so their sum is in float64.
            grouped = query.reshape(self.groups, self.group_size, *query.shape[1:])
            query = np.stack(each(lambda heads: heads.sum(0, dtype=np.float64), grouped, grouped[0].size))
        query, key = layer_form_factors(query, self.key)
        return side_by_side(query), side_by_side(key)


def side_by_side(factors: Any) -> Any:
    """Return factors `[..., G, d, r]` as one factor `[..., d, G·r]`; it shares memory that is stored as [G, r, d]."""
    *batch, groups, d, r = factors.shape
    return factors.mT.reshape(*batch, groups * r, d).mT


def head_scores(
    factors: LayerFactors,
    rotary: RotaryPairs | None = None,
    *,
    key: Any = None,
    norm: Norm | None = None,
    ranks: bool = False,
) -> Scores[Any]:
    """Return the scores of every head, each `[H]`.

    key:  if given, keys [G, d_k, r] in place of the layer's own
    norm: if given, the norm that is folded in
    """
    d, r = factors.query.shape[1:]
    groups, size = factors.groups, factors.group_size
    query = factors.query.reshape(groups, size, d, r)
    keys = (factors.key if key is None else key)[:, None]  # [G, 1, d_k, r]
    some = size if size * d * r <= AT_ONCE else max(1, AT_ONCE // (d * r))  # heads of a group at once
    more = max(1, AT_ONCE // (some * d * r)) if some == size else 1  # groups at once
    tasks = [(slice(i, i + more), slice(j, j + some)) for i in range(0, groups, more) for j in range(0, size, some)]

    def work(task: tuple[slice, slice]) -> Scores[Any]:
        some_query, some_key = fold_norm(query[task], norm), fold_norm(keys[task[0]], norm)
        scores = score_precisely(some_query, some_key, rotary, ranks=ranks)  # [groups, heads]
        return scores.each(lambda values: values.reshape(values.shape[0] * values.shape[1], *values.shape[2:]))

    first, *others = each(work, tasks, 0 if is_torch(query) else more * some * d * r * r)
    return first.each(lambda *parts: namespace(parts[0]).concatenate(parts), *others)


def layer_scores(
    factors: LayerFactors,
    rotary: RotaryPairs | None = None,
    *,
    key: Any = None,
    norm: Norm | None = None,
    ranks: bool = False,
) -> Scores[Any]:
    """Return the scores of the layer form, each `[1]`; arguments as for `head_scores`, with a key [d_k, G·r]."""
    query, own = factors.form
    query, key = (fold_norm(w, norm)[None] for w in (query, own if key is None else key))
    return score_precisely(query, key, rotary, groups=factors.groups, ranks=ranks)


def fold_norm(w: Any, norm: Norm | None) -> Any:
    """Return factors `[..., d, r]` with the norm before the attention folded in: C diag(g) W, with C for LayerNorm."""
    if norm is None:
        return w
    gain = norm.gain[:, None]  # [d, 1]
    if is_torch(w):
        folded = w * gain
        return folded - folded.mean(-2, keepdim=True) if norm.centred else folded
    small = _is_small(*w.shape[-2:])
    if not small and not norm.centred:
        return w * gain
    folded = w.astype(np.float64) * gain  # float64, because subtracting the mean may cancel
    if norm.centred:
        folded -= folded.mean(-2, keepdims=True)
    return folded if small else folded.astype(w.dtype)


def _is_small(d: int, r: int) -> bool:
    return d * r * r <= SMALL
