"""The dimensions of a model in pre-training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    length: int  # number of positions
    causal: bool
    pad: int = 0  # id of [PAD]

    @property
    def head_size(self) -> int:
        """Return r."""
        return self.hidden // self.heads


def gated_intermediate(hidden: int) -> int:
    """Return the width of a gated feed-forward layer with about as many parameters as an ungated one of width 4d.

    It has three matrices in place of two, so its width is 8d/3, rounded up to a multiple of 64.

    >>> gated_intermediate(256), gated_intermediate(768)
    (704, 2048)
    """
    return -(-8 * hidden // (3 * 64)) * 64
