"""Norms on the queries and keys of a layer: what of them is linear is part of the factors of its form.

A norm multiplies by a gain and divides by a positive number per token, which does not change who is compared with whom.
LayerNorm also subtracts the mean, which is linear as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from attngeo.arrays import Array
from attngeo.errors import LayoutError
from attngeo.weights.layout.families import Family
from attngeo.weights.layout.site import Site
from attngeo.weights.layout.storage.base import Shapes


@dataclass(frozen=True)
class QKNorms:
    """The norms on the queries and keys of one layer, if it has any."""

    gains: tuple[str | None, str | None]  # names of the tensors with the gains of queries and keys
    offset: bool = False  # gains are stored as gain − 1
    centred: bool = False  # the norms are LayerNorms, which subtract the mean before they multiply by the gain
    gainless: bool = False  # the norms are LayerNorms without a gain

    @classmethod
    def of(cls, site: Site, shapes: Shapes, facts: Family) -> QKNorms:
        """Return the norms of a layer.

        They are LayerNorms by the model type, or by a bias beside a gain, which RMSNorm lacks.

        facts: about the part of the model that the layer belongs to
        """
        biases = (f"{name.removesuffix('.weight')}.bias" for name in site.gains if name is not None)
        centred = facts.centred or any(bias in shapes for bias in biases)
        return cls(site.gains, facts.offset, centred, facts.gainless)

    def include(self, query: Array, key: Array, tensors: Mapping[str, Array]) -> None:
        """Apply the linear part of the norms to query [H, d, r] and key [G, d, r], in place.

        tensors: the gains, by name
        """
        for name, side in zip(self.gains, (query, key), strict=True):
            if name is not None:
                self._multiply(name, side, tensors[name] + 1 if self.offset else tensors[name])
            elif self.gainless:
                side -= side.mean(2, keepdims=True)  # [heads, d, 1]

    def _multiply(self, name: str, side: Array, gain: Array) -> None:
        """Multiply side [heads, d, r] in place by a gain per dimension [r], or per head and dimension [heads·r]."""
        heads, _, size = side.shape
        count = math.prod(gain.shape)
        if count not in (size, heads * size):
            raise LayoutError(f"{name}: shape {list(gain.shape)}, expected {size} or {heads}×{size} gains")
        if self.centred:  # over what the norm reads: one head, or all heads for a gain of shape [heads·r]
            all_heads = count > size and len(gain.shape) == 1
            side -= side.mean((0, 2) if all_heads else 2, keepdims=True)  # [1, d, 1] or [heads, d, 1]
        side *= gain.reshape(count // size, 1, size)
