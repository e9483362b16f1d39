"""`LayerPlan`: which tensors of one layer have to be read, and how its queries and keys are made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attngeo.weights.layout.attention_weights import AttentionWeights, Norm
from attngeo.weights.layout.preceding_norm import NormLocation
from attngeo.weights.layout.qk_norms import QKNorms
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.layout.site import Site
from attngeo.weights.layout.storage.base import Heads
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
    qk_norms: QKNorms  # the linear part of these norms
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
        self.qk_norms.include(query, key, tensors)
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
            tensors=(self.site.query, self.site.key),
        )


def _norm(location: NormLocation, tensors: Mapping[str, Any]) -> Norm:
    gain = tensors[location.tensor]
    return Norm(gain + 1 if location.offset else gain, location.centred)
