"""One attention layer's queries and keys, head by head."""

from __future__ import annotations

from dataclasses import dataclass, field

from attngeo.weights.sources.checkpoint import FloatArray


@dataclass(frozen=True)
class Norm:
    """The normalisation whose output enters the projections: M → C diag(g) M diag(g) C, C only if centred."""

    gain: FloatArray  # [d]
    centred: bool  # LayerNorm subtracts the mean, RMSNorm does not


@dataclass(frozen=True)
class AttentionWeights:
    """Queries and keys of one layer, row vectors: logits = x M_h xᵀ with M_h = query[h] key[h // (H/G)]ᵀ."""

    stack: str  # "encoder", "decoder", "cross", "text", "vision", "audio", …
    layer: int  # from 0 within the stack
    query: FloatArray  # [H, d_q, r]
    key: FloatArray  # [G, d_k, r], H a multiple of G
    heads_known: bool = True  # False: the head count is unknown, H = G = 1 holds the whole layer
    cross: bool = False  # queries and keys read different sequences
    qk_norm: bool = False  # queries and keys are normalised before their product; their gains are in the factors
    norm: Norm | None = None  # None: not asked for, or not found
    tensors: tuple[str, ...] = field(default=(), repr=False)  # names it was read from, for error messages

    @property
    def group_size(self) -> int:
        """Query heads that share one key head."""
        return len(self.query) // len(self.key)
