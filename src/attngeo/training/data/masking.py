"""BERT's masking: which tokens of a row are predicted, and what the model reads in their place.

Each row has n = share · length positions to predict, drawn uniformly among its ordinary tokens; special tokens follow
where a row has fewer ordinary ones. At each position the model reads [MASK] with probability 0.8, a random ordinary
token with probability 0.1, and the token itself otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class MaskedObjective:
    """Predict `share` of the tokens of each row from the whole row."""

    mask: int  # id of [MASK]
    special: tuple[int, ...]  # ids that are never masked and never drawn
    vocabulary: int
    share: float

    def predicted(self, length: int) -> int:
        """Return n, the number of positions to predict per row; it is constant, so that shapes never change."""
        return max(1, round(self.share * length))

    def prepare(self, ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the model reads [steps, rows, length], the positions to predict and their targets.

        ids: [steps, rows, length], token ids
        Positions (within the row, ascending) and targets have the shape [steps, rows, n].
        """

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=ids.device)

        is_ordinary, ordinary = _ordinary_tokens(self.vocabulary, self.special, ids.device)
        priority = uniform(*ids.shape).masked_fill_(~is_ordinary[ids], -1.0)  # [steps, rows, length]
        count = self.predicted(ids.shape[-1])
        positions = priority.topk(count, dim=-1).indices.sort(-1).values  # [steps, rows, n]
        targets = ids.gather(-1, positions)  # [steps, rows, n]
        choice = (uniform(*positions.shape) * len(ordinary)).long().clamp_(max=len(ordinary) - 1)
        other = ordinary[choice]  # [steps, rows, n]
        u = uniform(*positions.shape)
        replacement = torch.where(u < 0.8, self.mask, torch.where(u < 0.9, other, targets))  # [steps, rows, n]
        return ids.scatter(-1, positions, replacement), positions, targets


@cache  # made once: both tables come from the host, and waiting for it would stall the device at every block
def _ordinary_tokens(vocabulary: int, special: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the tokens that are not special, as a table of booleans [vocabulary] and as a list of ids."""
    is_ordinary = torch.ones(vocabulary, dtype=torch.bool)
    is_ordinary[list(special)] = False
    return is_ordinary.to(device), is_ordinary.nonzero().squeeze(1).to(device)
