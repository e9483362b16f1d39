"""The re-paired null: queries of a model scored with keys they were not trained with.

Each head is paired with the keys of another group of its layer, by one seeded derangement of the groups. Where a layer
has one group, and for layer forms, the keys come from another layer of the same stack and shapes: the previous one, and
the last one for the first. The layers are thus deranged too, and only two of them are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.factored import Figures, FormScores
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.layer import LayerFactors, head_scores, layer_scores
from attngeo.weights.scoring.rows import Row, null_if_nan

if TYPE_CHECKING:
    from attngeo.weights.scoring.batches.layer_batch import LayerBatch

SEED = 0

# Keys can be exchanged between layers that agree in stack, shape of the queries, shape of the keys and G.
Kind = tuple[str, tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True, eq=False)
class UnpairedLayer:
    """A layer whose rows are to be scored with the keys of another layer."""

    layer: Row
    heads: list[Row]  # empty where the heads were paired within the layer
    query: Factors | None  # [H, r, d_q], kept only for `heads`
    layer_query: Factors  # [1, G r, d_q]
    layer_key: Factors  # [1, G r, d_k], its own
    figures: Figures
    groups: int  # G

    def pair_with(self, key: Factors, layer_key: Factors) -> None:
        """Fill in the columns, unless the keys are the layer's own: the same layer, or one that shares its weights."""
        own = self.layer_key.w
        if bool((layer_key.w[0, :, 0] == own[0, :, 0]).all()) and bool((layer_key.w == own).all()):
            return
        _fill(self.layer, layer_scores(self.layer_query, layer_key, self.figures, self.groups))
        if self.query is not None:
            for row, scores in zip(self.heads, head_scores(self.query, key, figures=self.figures), strict=True):
                _fill(row, scores)


@dataclass(frozen=True)
class RepairedNull:
    """Fills the columns whose names end in `_repaired` while the layers of a model are scored."""

    first: dict[Kind, UnpairedLayer] = field(default_factory=dict)
    last: dict[Kind, tuple[Factors, Factors]] = field(default_factory=dict)  # keys of the heads and of the layer form

    def add(
        self, stack: str, factors: LayerFactors, layer: Row, heads: list[Row], rotary: RotaryPairs | None = None
    ) -> None:
        """Score the next layer; `layer` and `heads` are its rows, `heads` empty where heads are not scored.

        rotary: how queries and keys rotate, also when keys of another layer take the place of its own
        """
        groups, figures = factors.groups, Figures(dominance=False, rotary=rotary)
        if heads and groups > 1:
            scored = head_scores(*factors.heads, other_groups(groups, factors.key_of), figures)
            for row, scores in zip(heads, scored, strict=True):
                _fill(row, scores)
            heads = []
        query, key = factors.heads
        layer_query = factors.layer_query.without_summands()  # a null does not need the last digits
        unpaired = UnpairedLayer(
            layer, heads, query if heads else None, layer_query, factors.layer_key, figures, groups
        )
        kind = (stack, factors.query.w.shape, factors.key.w.shape, groups)
        if kind in self.first:
            unpaired.pair_with(*self.last[kind])
        else:
            self.first[kind] = unpaired
        self.last[kind] = (key, factors.layer_key)

    def add_batch(self, batch: LayerBatch, rows: Sequence[list[Row]], rotary: RotaryPairs | None = None) -> None:
        """Score the next layers, held on a device.

        rows: of each layer, the row of its form, followed by those of its heads
        """
        import torch

        figures = Figures(dominance=False, rotary=rotary)
        heads_pending = len(rows[0]) > 1
        if heads_pending and batch.groups > 1:
            partner = other_groups(batch.groups, batch.key_of)
            for new, scored in zip(rows, batch.head_scores(figures, partner), strict=True):
                for row, scores in zip(new[1:], scored, strict=True):
                    _fill(row, scores)
            heads_pending = False
        kind = (batch.layers[0].stack, tuple(batch.query.shape[1:]), tuple(batch.key.shape[1:]), batch.groups)
        if kind not in self.first:
            self.first[kind] = UnpairedLayer(
                rows[0][0],
                rows[0][1:] if heads_pending else [],
                Factors(batch.query[0]) if heads_pending else None,
                Factors(batch.layer_query[:1]),
                Factors(batch.layer_key[:1]),
                figures,
                batch.groups,
            )
            before = batch.key[:1], batch.layer_key[:1]  # its own, which are recognised below
        else:
            before = self.last[kind][0].w[None], self.last[kind][1].w
        keys = torch.cat([before[0], batch.key[:-1]])  # [L, G, r, d_k]
        layer_keys = torch.cat([before[1], batch.layer_key[:-1]])  # [L, G r, d_k]
        shared = (layer_keys == batch.layer_key).flatten(1).all(1).tolist()  # [L], the same layer, or shared weights
        of_layers = batch.layer_scores(figures, layer_keys)
        of_heads = batch.head_scores(figures, key=keys) if heads_pending else [[] for _ in rows]
        for new, same, of_layer, scored in zip(rows, shared, of_layers, of_heads, strict=True):
            if not same:
                for row, scores in zip(new, [of_layer, *scored], strict=heads_pending):
                    _fill(row, scores)
        self.last[kind] = (Factors(batch.key[-1]), Factors(batch.layer_key[-1:]))

    def close(self) -> None:
        """Pair the first layer of each kind with the keys of the last one."""
        for kind, unpaired in self.first.items():
            unpaired.pair_with(*self.last[kind])


def other_groups(groups: int, key_of: Sequence[int] | None) -> list[int]:
    """Return, for each group of queries, the position of the keys of another group.

    key_of: the key head of each query head, where each query head has a copy of its keys

    >>> other_groups(2, None), other_groups(2, (0, 0, 1))
    ([1, 0], [2, 2, 0])
    """
    partner = derangement(groups)
    return partner if key_of is None else [key_of.index(partner[group]) for group in key_of]


def derangement(groups: int) -> list[int]:
    """Return another group for each of at least two groups: a random cycle through all, the same at every call.

    >>> derangement(4)
    [1, 2, 3, 0]
    """
    cycle = np.random.default_rng([SEED, groups]).permutation(groups)
    partner = np.empty(groups, dtype=int)
    partner[cycle] = np.roll(cycle, 1)
    return [int(g) for g in partner]


def _fill(row: Row, scores: FormScores) -> None:
    row["symmetry_repaired"] = null_if_nan(scores.symmetry)
    row["directionality_repaired"] = null_if_nan(scores.directionality)
    row["symmetry_rope_repaired"] = null_if_nan(scores.rotary.symmetry)
    row["directionality_rope_repaired"] = null_if_nan(scores.rotary.directionality)
