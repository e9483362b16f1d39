"""`LayerPlan`: which tensors of one layer have to be read, and how its queries and keys are made from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attngeo.arrays import Array
from attngeo.errors import LayoutError
from attngeo.weights.layout.attention_weights import AttentionWeights, Norm
from attngeo.weights.layout.families import Family
from attngeo.weights.layout.norms import NormLocation
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.layout.site import Site
from attngeo.weights.layout.storage.base import Heads, Shapes
from attngeo.weights.sources.checkpoint import ReadRequest

# Returns the array of a request: `Checkpoint.read`, or a function that reads a live model into tensors.
Read = Callable[[ReadRequest], Any]


@dataclass(frozen=True)
class LayerPlan:
    """One layer about to be read."""

    stack: str
    layer: int
    site: Site
    heads: Heads  # those of the site; one head for the whole layer where no head count is known
    norm: NormLocation | None  # the norm before the attention, if it is to be read
    qk_norm: bool  # queries and keys are normalised before their product
    gain_offset: bool  # QK-norm gains are stored as gain − 1
    gain_centred: bool = False  # QK-norms are LayerNorms, which subtract the mean before they multiply by the gain
    gainless: bool = False  # QK-norms are LayerNorms without a gain
    rotary: RotaryPairs | None = None  # what rotates in the heads of this layer; None: nothing, or not known
    rotary_known: bool = False  # False: the layer may rotate, but how was never checked against a live model

    @property
    def requests(self) -> list[ReadRequest]:
        """Return the reads that `weights` makes, in the order in which it makes them."""
        norm = [] if self.norm is None else [ReadRequest(self.norm.tensor)]
        gains = [ReadRequest(name) for name in self.site.gains if name is not None]
        return [*norm, *self.site.storage.requests(self.heads), *gains]

    def weights(self, read: Read) -> AttentionWeights:
        """Return the queries and keys of the layer as arrays of the type that `read` returns.

        They include the linear part of QK-norms: the gain and, for LayerNorm, subtracting the mean.

        The arrays that `read` returns are changed in place.
        """
        tensors = {request.name: read(request) for request in self.requests}
        query, key = self.site.storage.factors(tensors, self.heads)  # [H, d_q, r], [G, d_k, r]
        self._multiply_gains(query, key, tensors)
        return AttentionWeights(
            stack=self.stack,
            layer=self.layer,
            query=query,
            key=key,
            heads_known=self.site.heads is not None,
            cross=self.site.cross,
            qk_norm=self.qk_norm or any(self.site.gains),
            rotary=self.rotary,
            rotary_known=self.rotary_known,
            norm=None if self.norm is None else _norm(self.norm, tensors),
            numbers=self.heads.numbers,
            key_of=self.heads.key_of,
            tensors=(self.site.query, self.site.key),
        )

    def _multiply_gains(self, query: Array, key: Array, tensors: Mapping[str, Array]) -> None:
        for name, side in zip(self.site.gains, (query, key), strict=True):
            if name is not None:
                gain = tensors[name] + 1 if self.gain_offset else tensors[name]
                multiply_gain(name, side, gain, self.gain_centred)
            elif self.gainless:
                side -= side.mean(2, keepdims=True)  # [heads, d, 1]


def multiply_gain(name: str, side: Array, gain: Array, centred: bool = False) -> None:
    """Multiply side [heads, d, r] in place by a gain per dimension [r], or per head and dimension [heads·r].

    centred: first subtract the mean over what the norm reads: one head, or all heads for a gain of shape [heads·r]
    """
    heads, _, size = side.shape
    count = math.prod(gain.shape)
    if count not in (size, heads * size):
        raise LayoutError(f"{name}: shape {list(gain.shape)}, expected {size} or {heads}×{size} gains")
    if centred:
        all_heads = count > size and len(gain.shape) == 1
        side -= side.mean((0, 2) if all_heads else 2, keepdims=True)  # [1, d, 1] or [heads, d, 1]
    side *= gain.reshape(count // size, 1, size)


def is_centred(gains: tuple[str | None, str | None], shapes: Shapes, known: Family) -> bool:
    """Return whether QK-norms with these gains are LayerNorms: by their model type, or by a bias, which RMSNorm lacks.

    >>> is_centred(("attn.q_norm.weight", None), {"attn.q_norm.weight": (8,), "attn.q_norm.bias": (8,)}, Family())
    True
    """
    biases = (f"{name.removesuffix('.weight')}.bias" for name in gains if name is not None)
    return known.centred or any(bias in shapes for bias in biases)


def _norm(location: NormLocation, tensors: Mapping[str, Any]) -> Norm:
    gain = tensors[location.tensor]
    return Norm(gain + 1 if location.offset else gain, location.centred)
