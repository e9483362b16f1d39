"""`AttentionWeights`: the queries and keys of one attention layer, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.sources.checkpoint import FloatArray


@dataclass(frozen=True)
class Norm:
    """The norm whose output the projections read. Folding it in gives C diag(g) M diag(g) C, with C only if centred."""

    gain: FloatArray  # [d]
    centred: bool  # True: LayerNorm, which subtracts the mean (C = I − 11ᵀ/d); False: RMSNorm


@dataclass(frozen=True)
class AttentionWeights:
    """The queries and keys of one layer, for row vectors x: logits = x M_h xᵀ, M_h = query[h] key[h // (H/G)]ᵀ.

    The arrays are float32 NumPy arrays. `Layers.read_with` also makes them of other arrays, such as the tensors of a
    model in training.

    >>> weights = next(iter(attngeo.attention_layers(attngeo.bundled.bundled("encoder"))))
    >>> weights.stack, weights.layer, weights.query.shape, weights.key.shape
    ('encoder', 0, (4, 128, 32), (4, 128, 32))
    """

    stack: str  # "encoder", "decoder", "cross", "text", "vision", "audio", …
    layer: int  # from 0 within the stack
    query: FloatArray  # [H, d_q, r]
    key: FloatArray  # [G, d_k, r], H a multiple of G; repeated for each query head where a pruned layer's groups differ
    heads_known: bool = True  # False: the head count is unknown, and H = G = 1 holds the whole layer
    cross: bool = False  # queries and keys read different sequences
    qk_norm: bool = False  # queries and keys are normalised before their product; query and key include the gains
    rotary: RotaryPairs | None = None  # what rotates in the heads of this layer; None: nothing, or not known
    rotary_known: bool = False  # False: the layer may rotate, but how was never checked against a live model
    norm: Norm | None = None  # the norm before the attention; None: not asked for, or not known
    numbers: tuple[int, ...] | None = None  # of the query heads in the full model, for a pruned layer; None: 0, 1, 2, …
    tensors: tuple[str, ...] = field(default=(), repr=False)  # names of the tensors read, for error messages

    @property
    def group_size(self) -> int:
        """Return H/G, the number of query heads that share one key head."""
        return len(self.query) // len(self.key)

    @property
    def head_numbers(self) -> Sequence[int]:
        """Return the number of each query head; a pruned layer keeps the numbers of the full model."""
        return range(len(self.query)) if self.numbers is None else self.numbers
