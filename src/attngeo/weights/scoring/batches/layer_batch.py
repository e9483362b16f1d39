"""`LayerBatch`: several layers of one shape, scored at once.

Launching the operations for one layer takes a GPU longer than carrying them out, so layers are scored in batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attngeo.arrays import AnyFloats, to_numpy
from attngeo.weights.layout.layer import Layer, layer_form_factors
from attngeo.weights.scoring.device.batched import BatchedScores
from attngeo.weights.scoring.device.products import Side
from attngeo.weights.scoring.factored import Figures, FormScores, score_forms
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.layer import layer_scores
from attngeo.weights.scoring.rounding_error import TRUSTED

if TYPE_CHECKING:
    from torch import Tensor

LAYERS = 8  # of a batch, at most, so that reading and scoring overlap
BYTES = 2**31  # of the factors of one batch, in float64; everything takes about 9 times as much
SHARE = 1 / 16  # of the memory of a GPU, where that is less
CPU_BYTES = 2**28  # on a CPU, which gains nothing from large batches

# Waits until the device has scored the forms of some layers, and returns their scores, layer by layer.
LaterLayerScores = Callable[[], list[list[FormScores]]]


@dataclass(frozen=True, eq=False)
class LayerBatch:
    """L layers of one stack with the same shapes, the same rotation and the same kind of norm."""

    layers: tuple[Layer, ...]
    query: Tensor  # [L, H, r, d_q]
    key: Tensor  # [L, G, r, d_k]

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> LayerBatch:
        import torch

        query, key = (torch.stack([getattr(one, side).mT for one in layers]) for side in ("query", "key"))
        own = zip(layers, query.mT, key.mT, strict=True)  # views, so that the tensors that were read are freed
        return cls(tuple(replace(one, query=q, key=k) for one, q, k in own), query, key)

    @property
    def groups(self) -> int:
        """G, the number of key heads."""
        return self.layers[0].groups

    @cached_property
    def heads(self) -> tuple[Side, Side]:
        """The factors of all heads, `[L G, H/G, r, d_q]` and `[L G, 1, r, d_k]`."""
        key = self.key.flatten(0, 1).unsqueeze(1)
        return Side(self.query.flatten(0, 1).unflatten(0, (len(key), -1))), Side(key)

    @cached_property
    def forms(self) -> tuple[Side, Side]:
        """The factors of the layer forms, `[L, 1, G r, d_q]` and `[L, 1, G r, d_k]`; heads of a group are summed."""
        query, key = layer_form_factors(self.query, self.key, axis=1)
        return Side(query.flatten(1, 2).unsqueeze(1)), Side(key.flatten(1, 2).unsqueeze(1))

    def first(self) -> LayerBatch:
        """Return a copy of the first layer, so that the memory of the others can be freed."""
        return LayerBatch(self.layers[:1], self.query[:1].clone(), self.key[:1].clone())

    def folded(self) -> LayerBatch:
        """Return the layers with the norm before the attention folded in."""
        import torch

        gains = torch.stack([one.norm.gain for one in self.layers if one.norm is not None])[:, None, None]  # [L,1,1,d]
        query, key = self.query * gains, self.key * gains
        if self.layers[0].norm is not None and self.layers[0].norm.centred:
            query, key = (w - w.mean(-1, keepdim=True) for w in (query, key))
        return replace(self, query=query, key=key)

    def head_scores(self, together: BatchedScores, figures: Figures, key: Side | None = None) -> LaterLayerScores:
        """Add the heads to `together`; those that need more digits are computed again on the CPU.

        key: if given, keys in place of the heads' own, [L G, 1, r, d_k]
        """
        query, key = self.heads[0], self.heads[1] if key is None else key
        scores = together.add(query, key, figures)
        w_query, w_key = query.w, key.w  # not the Gram matrices, whose memory is freed
        size, heads = w_query.shape[1], self.query.shape[1]

        def rescored(i: int) -> FormScores:
            (one,) = score_forms(_on_cpu(w_query[i // size, i % size]), _on_cpu(w_key[i // size, 0]), figures)
            return one

        def of_layers() -> list[list[FormScores]]:
            found = _precise(scores(), rescored)
            return [found[i : i + heads] for i in range(0, len(found), heads)]

        return of_layers

    def layer_scores(self, together: BatchedScores, figures: Figures, key: Side | None = None) -> LaterLayerScores:
        """Add the layer forms to `together`; those that need more digits are computed again on the CPU.

        key: if given, right factors in place of the layers' own, [L, 1, G r, d_k]
        """
        query, key = self.forms[0], self.forms[1] if key is None else key
        scores, groups = together.add(query, key, figures, self.groups), self.groups
        w_query, w_key = query.w, key.w

        def rescored(i: int) -> FormScores:
            return layer_scores(_on_cpu(w_query[i, 0]), _on_cpu(w_key[i, 0]), figures, groups)

        return lambda: [[one] for one in _precise(scores(), rescored)]


def _precise(scores: list[FormScores], rescored: Callable[[int], FormScores]) -> list[FormScores]:
    """Return scores, with those that need more digits than they have replaced."""
    return [one if one.error <= TRUSTED else rescored(i) for i, one in enumerate(scores)]


def _on_cpu(w: Tensor) -> Factors:
    """Return one factor `[r, d]` as a NumPy array."""
    array: AnyFloats = to_numpy(w)
    return Factors(array[None])


def layer_batches(layers: Iterable[Layer]) -> Iterator[LayerBatch]:
    """Yield consecutive layers that can be scored together."""
    some: list[Layer] = []
    for weights in layers:
        if some and (_kind(weights) != _kind(some[0]) or len(some) == _at_once(some[0])):
            yield LayerBatch.of(some)
            some = []
        some.append(weights)
    if some:
        yield LayerBatch.of(some)


def _kind(weights: Layer) -> tuple[Any, ...]:
    norm = None if weights.norm is None else weights.norm.centred
    shapes = tuple(weights.query.shape), tuple(weights.key.shape)
    return weights.stack, shapes, weights.heads_known, weights.rotary, weights.rotary_known, weights.cross, norm


def _at_once(weights: Layer) -> int:
    """Return how many layers of this shape are scored at once."""
    import torch

    device: Any = weights.query.device
    limit: float = CPU_BYTES
    if device.type == "cuda":
        limit = min(BYTES, SHARE * torch.cuda.get_device_properties(device).total_memory)
    layer = 8 * (math.prod(weights.query.shape) + math.prod(weights.key.shape))
    return max(1, min(LAYERS, int(limit // max(1, layer))))
