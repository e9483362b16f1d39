"""What a model is trained to predict. The masked objective has a module of its own, `masking`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Objective(Protocol):
    """Chooses which positions of a row are predicted and what the model reads."""

    def predicted(self, length: int) -> int:
        """Return n, the number of positions to predict in a row of `length` tokens."""
        ...

    def prepare(self, ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the model reads [steps, rows, length], and positions and targets [steps, rows, n].

        ids: [steps, rows, length], token ids
        """
        ...


@dataclass(frozen=True)
class CausalObjective:
    """Predict every token from the tokens before it."""

    def predicted(self, length: int) -> int:
        """Return length − 1: nothing is predicted at the last position."""
        return length - 1

    def prepare(self, ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return `ids` as they are, the positions 0 … length − 2 and the token after each; nothing is drawn."""
        steps, rows, length = ids.shape
        positions = torch.arange(length - 1, device=ids.device).expand(steps, rows, -1)  # [steps, rows, length − 1]
        return ids, positions, ids[..., 1:]
