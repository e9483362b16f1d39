"""`Requested`: which rows and columns of a score table are wanted."""

from __future__ import annotations

from dataclasses import dataclass

from attngeo.weights.layout.layer import Layer
from attngeo.weights.scoring.columns.layer_rows import turning_pairs
from attngeo.weights.scoring.factored import Figures


@dataclass(frozen=True)
class Requested:
    """What a caller of `score_rows` asked for."""

    model: str  # the name in the table
    heads: bool  # the heads too, not only the layers
    nulls: bool  # comparisons with both nulls
    finer: bool  # scores under rotary position embedding, and effective ranks
    frequencies: bool  # rows of rotary pairs

    def figures(self, weights: Layer) -> Figures:
        """Return what is computed of the forms of a layer."""
        return Figures(ranks=self.finer, rotary=turning_pairs(weights) if self.finer else None, pairs=self.frequencies)

    def heads_of(self, weights: Layer) -> bool:
        """Return whether the heads of a layer are scored."""
        return self.heads and weights.heads_known
