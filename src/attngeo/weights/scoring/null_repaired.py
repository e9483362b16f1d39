"""The re-paired null: the model's own queries against keys they were not trained with.

A head meets the keys of another group of its layer, by one seeded derangement of the groups. Where a layer has one
group, and for layer forms, the keys come from another layer of the same stack and shapes: the one before it, and for
the first of them the last, so that the layers too are deranged and only two of them are in memory at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from attngeo.weights.scoring.factored import Factors, Scores
from attngeo.weights.scoring.layer import Sides, derangement, head_scores, layer_scores
from attngeo.weights.scoring.table import Row, known

Kind = tuple[str, tuple[int, ...], tuple[int, ...]]  # stack and shapes: between these, keys can be exchanged


@dataclass(frozen=True, eq=False)
class Seeking:
    """A layer whose rows are to meet another layer's keys."""

    layer: Row
    heads: list[Row]  # empty where the heads found their partners within the layer
    query: Factors | None  # [H, r, d_q], kept only for them
    layer_query: Factors
    layer_key: Factors  # its own

    def meet(self, key: Factors, layer_key: Factors) -> None:
        """Fill in the columns, unless the keys are its own: the same layer, or one that shares its weights."""
        if np.array_equal(layer_key.w[0, :, 0], self.layer_key.w[0, :, 0]) and np.array_equal(
            layer_key.w, self.layer_key.w
        ):
            return
        fill(self.layer, layer_scores(self.layer_query, layer_key))
        if self.query is not None:
            for row, scores in zip(self.heads, head_scores(self.query, key), strict=True):
                fill(row, scores)


@dataclass(frozen=True)
class Repaired:
    """Fills `symmetry_repaired` and `directionality_repaired` of the rows as the layers come by."""

    first: dict[Kind, Seeking] = field(default_factory=dict)
    last: dict[Kind, tuple[Factors, Factors]] = field(default_factory=dict)

    def add(self, stack: str, sides: Sides, layer: Row, heads: list[Row]) -> None:
        """Take the next layer and its rows; `heads` is empty where heads are not scored."""
        groups = len(sides.key.w)
        if heads and groups > 1:
            found = head_scores(*sides.heads, derangement(groups))
            for row, scores in zip(heads, found, strict=True):
                fill(row, scores)
            heads = []
        query, key = sides.heads
        layer_query = sides.layer_query.without_summands()  # a null needs no more digits than w has
        seeking = Seeking(layer, heads, query if heads else None, layer_query, sides.layer_key)
        kind = (stack, sides.query.w.shape, sides.key.w.shape)
        if kind in self.first:
            seeking.meet(*self.last[kind])
        else:
            self.first[kind] = seeking
        self.last[kind] = (key, sides.layer_key)

    def close(self) -> None:
        """The first layers meet the keys of the last ones."""
        for kind, seeking in self.first.items():
            seeking.meet(*self.last[kind])


def fill(row: Row, scores: Scores) -> None:
    row["symmetry_repaired"] = known(scores.symmetry)
    row["directionality_repaired"] = known(scores.directionality)
