"""`RepairedBatches`: the re-paired null of layers that are scored in batches, by the rules of `RepairedNull`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.batches.layer_batch import LaterLayerScores, LayerBatch
from attngeo.weights.scoring.device.batched import BatchedScores
from attngeo.weights.scoring.device.fetching import Fetched
from attngeo.weights.scoring.device.products import Side
from attngeo.weights.scoring.factored import Figures
from attngeo.weights.scoring.nulls.repaired import derangement, fill_repaired
from attngeo.weights.scoring.rows import Row

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as Device

Kind = tuple[str, tuple[int, ...], tuple[int, ...], int]  # stack, shapes of queries and keys, G
RowsOfLayers = Sequence[Sequence[Row]]  # of each layer, the row of its form, followed by those of its heads
Fill = Callable[[RowsOfLayers], None]  # waits for the scores and fills them in


@dataclass(eq=False)
class _Previous:
    """What is kept of the layers of one kind that were scored."""

    first: LayerBatch  # the first of them, which waits for the keys of the last one
    rotary: RotaryPairs | None
    rows: Sequence[Row] = ()  # those of the first layer, once they are made
    layer_key: Side | None = None  # of the last layer
    head_key: Side | None = None  # the same, where heads are paired with keys of other layers


@dataclass(frozen=True)
class RepairedBatches:
    """Fills the columns whose names end in `_repaired`.

    heads: the heads are scored too
    """

    heads: bool
    previous: dict[Kind, _Previous] = field(default_factory=dict)

    def start(self, together: BatchedScores, batch: LayerBatch, rotary: RotaryPairs | None) -> Fill:
        """Add the next layers to `together`; return a function that waits for the scores and fills in their rows."""
        figures = Figures(dominance=False, rotary=rotary)
        kind = (batch.layers[0].stack, tuple(batch.query.shape[1:]), tuple(batch.key.shape[1:]), batch.groups)
        new = kind not in self.previous
        if new:
            self.previous[kind] = _Previous(batch.first(), rotary)
        kept = self.previous[kind]
        heads = self.heads and batch.layers[0].heads_known
        fills = [_start_forms(together, batch, kept.layer_key, figures)]
        kept.layer_key = batch.forms[1][-1:].copy()
        if heads and batch.groups > 1:
            partner = _positions(batch.groups, len(batch.layers), batch.key.device)
            fills.append(_fill_heads(batch.head_scores(together, figures, batch.heads[1][partner])))
        elif heads:
            fills.append(_start_heads(together, batch, kept.head_key, figures))
            kept.head_key = batch.heads[1][-batch.key.shape[1] :].copy()

        def fill(rows: RowsOfLayers) -> None:
            if new:
                kept.rows = rows[0]
            for one in fills:
                one(rows)

        return fill

    def close(self) -> Callable[[], None]:
        """Let the device score the first layer of each kind with the keys of the last one; return as `start` does."""
        waiting = []
        for kept in self.previous.values():
            together, figures = BatchedScores(), Figures(dominance=False, rotary=kept.rotary)
            fills = [_start_forms(together, kept.first, kept.layer_key, figures)]
            if kept.head_key is not None:
                fills.append(_start_heads(together, kept.first, kept.head_key, figures))
            together.compute()
            waiting.append((kept, fills))

        def fill() -> None:
            for kept, fills in waiting:
                for one in fills:
                    one([kept.rows])

        return fill


def _start_forms(together: BatchedScores, batch: LayerBatch, before: Side | None, figures: Figures) -> Fill:
    """Score layer forms with the keys of the layers before them; `before` are those of the layer before the first."""
    own = batch.forms[1]
    keys = own.after(own[:1] if before is None else before)
    scores, shared = batch.layer_scores(together, figures, keys), _shared(keys, own, len(batch.layers))
    return lambda rows: _fill_others([of_layer[:1] for of_layer in rows], scores, shared)


def _start_heads(together: BatchedScores, batch: LayerBatch, before: Side | None, figures: Figures) -> Fill:
    """Score heads with the keys of the layers before them, as `_start_forms` does."""
    own = batch.heads[1]
    keys = own.after(own[: batch.key.shape[1]] if before is None else before)
    scores, shared = batch.head_scores(together, figures, keys), _shared(keys, own, len(batch.layers))
    return lambda rows: _fill_others([of_layer[1:] for of_layer in rows], scores, shared)


def _shared(keys: Side, own: Side, layers: int) -> Fetched:
    """Return which layers are paired with keys equal to their own: the same layer, or one that shares its weights."""
    return Fetched((keys.w == own.w).unflatten(0, (layers, -1)).flatten(1).all(1))


def _fill_others(rows: RowsOfLayers, scores: LaterLayerScores, shared: Fetched) -> None:
    for some, scored, same in zip(rows, scores(), shared.array(), strict=True):
        if not same:
            fill_repaired(some, scored)


def _fill_heads(scores: LaterLayerScores) -> Fill:
    def fill(rows: RowsOfLayers) -> None:
        for of_layer, scored in zip(rows, scores(), strict=True):
            fill_repaired(of_layer[1:], scored)

    return fill


@lru_cache(maxsize=16)
def _positions(groups: int, layers: int, device: Device) -> Tensor:
    """Return the positions of other keys of the same layer for each group of queries of some layers, on the device."""
    import torch

    partner = torch.tensor(derangement(groups))
    starts = len(partner) * torch.arange(layers)
    return (starts[:, None] + partner).flatten().to(device)
