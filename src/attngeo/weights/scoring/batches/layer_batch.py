"""`LayerBatch`: several layers of one shape, scored at once.

Launching the operations for one layer takes a GPU longer than carrying them out, so layers are scored in batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attngeo.weights.layout.attention_weights import AttentionWeights, layer_form_factors
from attngeo.weights.scoring.device.batched import batched_layer_scores
from attngeo.weights.scoring.factored import Figures, FormScores
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.layer import head_scores, layer_scores
from attngeo.weights.scoring.rounding_error import TRUSTED

if TYPE_CHECKING:
    from torch import Tensor

BYTES = 2**31  # factors of one batch, in float64; the sums of a batch take several times as much
LAYERS = 8  # at most, so that reading and scoring overlap


@dataclass(frozen=True, eq=False)
class LayerBatch:
    """L layers of one stack with the same shapes, the same rotation and the same kind of norm."""

    layers: tuple[AttentionWeights, ...]
    query: Tensor  # [L, H, r, d_q]
    key: Tensor  # [L, G, r, d_k]; one copy per query head where the groups of a pruned layer are unequal

    @classmethod
    def of(cls, layers: Sequence[AttentionWeights]) -> LayerBatch:
        import torch

        query, key = ([getattr(one, side).mT for one in layers] for side in ("query", "key"))
        return cls(tuple(layers), torch.stack(query).contiguous(), torch.stack(key).contiguous())

    @property
    def groups(self) -> int:
        """G, the number of key heads, copies not counted."""
        return self.layers[0].groups

    @property
    def key_of(self) -> tuple[int, ...] | None:
        """The key head of each query head, where the groups are unequal."""
        return self.layers[0].key_of

    @property
    def layer_key(self) -> Tensor:
        """The right factors of the layer forms, `[L, G r, d_k]`."""
        return layer_form_factors(self.key, self.key, self.key_of, axis=1)[1].flatten(1, 2)

    @property
    def layer_query(self) -> Tensor:
        """The left factors of the layer forms, `[L, G r, d_q]`: the query heads of a group are summed."""
        return layer_form_factors(self.query, self.key, self.key_of, axis=1)[0].flatten(1, 2)

    def folded(self) -> LayerBatch:
        """Return the layers with the norm before the attention folded in."""
        import torch

        gains = torch.stack([one.norm.gain for one in self.layers if one.norm is not None])[:, None, None]  # [L,1,1,d]
        query, key = self.query * gains, self.key * gains
        if self.layers[0].norm is not None and self.layers[0].norm.centred:
            query, key = (w - w.mean(-1, keepdim=True) for w in (query, key))
        return replace(self, query=query, key=key)

    def head_scores(
        self, figures: Figures, partner: Sequence[int] | None = None, key: Tensor | None = None
    ) -> list[list[FormScores]]:
        """Return the scores of the heads of each layer.

        partner: if given, the queries of group g are paired with the keys of group partner[g] of their layer
        key:     if given, keys [L, G, r, d_k] in place of the layers' own
        """
        groups = self.key.shape[1]
        partners = None if partner is None else [i * groups + p for i in range(len(self.layers)) for p in partner]
        queries, keys = (Factors(w.flatten(0, 1)) for w in (self.query, self.key if key is None else key))
        scores = head_scores(queries, keys, partners, figures)
        heads = self.query.shape[1]
        return [scores[i : i + heads] for i in range(0, len(scores), heads)]

    def layer_scores(self, figures: Figures, key: Tensor | None = None) -> list[FormScores]:
        """Return the scores of each layer form; those that need more digits are computed again on the CPU.

        key: if given, right factors [L, G r, d_k] in place of the layers' own
        """
        query, key = self.layer_query, self.layer_key if key is None else key
        scores = batched_layer_scores(query, key, figures, self.groups)
        for i, one in enumerate(scores):
            if not one.error <= TRUSTED:
                scores[i] = layer_scores(Factors(query).cpu(i), Factors(key).cpu(i), figures, self.groups)
        return scores


def layer_batches(layers: Iterable[AttentionWeights]) -> Iterator[LayerBatch]:
    """Yield consecutive layers that can be scored together."""
    some: list[AttentionWeights] = []
    for weights in layers:
        if some and (_kind(weights) != _kind(some[0]) or len(some) == _at_once(some[0])):
            yield LayerBatch.of(some)
            some = []
        some.append(weights)
    if some:
        yield LayerBatch.of(some)


def _kind(weights: AttentionWeights) -> tuple[Any, ...]:
    norm = None if weights.norm is None else weights.norm.centred
    shapes = tuple(weights.query.shape), tuple(weights.key.shape)
    heads = weights.heads_known, weights.key_of
    return weights.stack, shapes, heads, weights.rotary, weights.rotary_known, weights.cross, norm


def _at_once(weights: AttentionWeights) -> int:
    return max(1, min(LAYERS, BYTES // (8 * max(1, math.prod(weights.query.shape) + math.prod(weights.key.shape)))))
