"""`AttentionWeights`: the queries and keys of one attention layer, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from attngeo.arrays import Array
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.sources.checkpoint import FloatArray


@dataclass(frozen=True, eq=False)
class Norm:
    """The norm whose output the projections read. Folding it in gives C diag(g) M diag(g) C, with C only if centred."""

    gain: FloatArray  # [d]
    centred: bool  # True: LayerNorm, which subtracts the mean (C = I − 11ᵀ/d); False: RMSNorm

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Norm) and _same_fields(self, other)


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """The queries and keys of one layer, for row vectors x: logits = x M_h xᵀ, M_h = query[h] key[h // (H/G)]ᵀ.

    The arrays are float32 NumPy arrays. `Layers.read_with` also makes them of other arrays, such as the tensors of a
    model in training.

    >>> weights = next(iter(attngeo.attention_layers(attngeo.bundled("encoder"))))
    >>> weights
    AttentionWeights(encoder L0, query [4, 128, 32], key [4, 128, 32])
    """

    stack: str  # "encoder", "decoder", "cross", "text", "vision", "audio", …
    layer: int  # from 0 within the stack
    query: FloatArray  # [H, d_q, r]
    key: FloatArray  # [G, d_k, r], H a multiple of G
    heads_known: bool = True  # False: the head count is unknown, and H = G = 1 holds the whole layer
    cross: bool = False  # queries and keys read different sequences
    qk_norm: bool = False  # queries and keys are normalised before their product; both include the gains
    rotary: RotaryPairs | None = None  # what rotates in the heads of this layer; None: nothing, or not known
    rotary_known: bool = False  # False: the layer may rotate, but how was never checked against a live model
    norm: Norm | None = None  # the norm before the attention; None: not asked for, or not known
    numbers: tuple[int, ...] | None = None  # of the query heads in the full model, for a pruned layer; None: 0, 1, 2, …
    tensors: tuple[str, ...] = field(default=(), repr=False)  # names of the query and the key tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttentionWeights) and _same_fields(self, other)

    def __repr__(self) -> str:
        known = "" if self.heads_known else ", heads not known"
        shapes = f"query {list(self.query.shape)}, key {list(self.key.shape)}"
        return f"AttentionWeights({self.stack} L{self.layer}, {shapes}{known})"

    @property
    def group_size(self) -> int:
        """Return H/G, the number of query heads that share one key head."""
        return len(self.query) // len(self.key)

    @property
    def groups(self) -> int:
        """Return G, the number of key heads."""
        return len(self.key)

    @property
    def head_numbers(self) -> Sequence[int]:
        """Return the number of each query head; a pruned layer keeps the numbers of the full model."""
        return range(len(self.query)) if self.numbers is None else self.numbers


def layer_form_factors(query: Array, key: Array, axis: int = 0) -> tuple[Array, Array]:
    """Return the factors of the layer form M = Σ_g (Σ_{h in g} W_q^h)(W_k^g)ᵀ, both with G heads along `axis`.

    query: H heads along `axis`
    key:   G heads along `axis`; key head g is read by the query heads g·H/G, …, (g + 1)·H/G − 1

    >>> query, key = np.array([[1.0], [2.0], [4.0], [8.0]]), np.array([[5.0], [7.0]])
    >>> [side.ravel().tolist() for side in layer_form_factors(query, key)]
    [[3.0, 12.0], [5.0, 7.0]]
    """
    if query.shape[axis] == key.shape[axis]:
        return query, key
    groups = key.shape[axis]
    summed: Array = query.reshape(*query.shape[:axis], groups, -1, *query.shape[axis + 1 :]).sum(axis + 1)
    return summed, key


def _same_fields(a: Any, b: Any) -> bool:
    """Return whether two dataclasses of one type have equal fields; arrays are equal in shape and in all entries."""
    for name in (each.name for each in fields(a)):
        x, y = getattr(a, name), getattr(b, name)
        if hasattr(x, "shape") and hasattr(y, "shape"):
            if x.shape != y.shape or not bool((x == y).all()):
                return False
        elif x is not y and x != y:
            return False
    return True
