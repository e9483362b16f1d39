"""`MaskedBatches`: the same rows of text under many random masks, as batches of a masked language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attngeo.arguments import LARGEST_SEED, finite_number, whole_number
from attngeo.errors import InputError
from attngeo.training.data.masking import MaskedObjective

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class MaskedBatches(Sequence[Mapping[str, Tensor]]):
    """`masks` batches with the same rows; the mask of batch k depends on the seed and k alone."""

    batch: Mapping[str, Tensor]  # input_ids [S, N] without masks, and what else the model takes
    objective: MaskedObjective
    masks: int
    seed: int = 0

    def __len__(self) -> int:
        return self.masks

    def __getitem__(self, number: int) -> dict[str, Tensor]:  # type: ignore[override]  # no slices
        if not 0 <= number < self.masks:
            raise IndexError(number)
        ids = self.batch["input_ids"].cpu()  # masks are drawn on the CPU, so that they are the same on every device
        # torch's CPU generator uses the lower 32 bits; times an odd number, different seeds differ in them.
        draw = torch.Generator().manual_seed((self.seed * 1_000_003 + number) % 2**32)
        read, positions, targets = (part[0] for part in self.objective.prepare(ids[None], draw))
        labels = torch.full_like(ids, -100).scatter(-1, positions, targets)  # [S, N]
        return {**self.batch, "input_ids": read, "labels": labels}


def masked_batches(
    batch: Mapping[str, Tensor], tokenizer: PreTrainedTokenizerBase | None, masks: int, share: float, seed: int
) -> MaskedBatches:
    """Return `masks` maskings of the rows of `batch`: BERT's rule, which predicts `share` of the tokens of each row."""
    if whole_number(masks, "masks", None) < 2:
        raise InputError(f"masks: {masks}, expected at least 2, because the masks are also compared by halves")
    if not 0 < finite_number(share, "share") < 1:
        raise InputError(f"share: {share}, expected a share of the tokens between 0 and 1")
    whole_number(seed, "seed", 0, LARGEST_SEED)
    ids = batch.get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise InputError("batch: masks need input_ids of shape [sequences, tokens], without masks")
    mask = getattr(tokenizer, "mask_token_id", None)
    if tokenizer is None or mask is None:
        raise InputError("tokenizer: masks need a tokenizer with a mask token; a causal model is averaged over batches "
                         "instead, by expected_terms")  # fmt: skip
    special = tuple(sorted({*tokenizer.all_special_ids, mask}))
    vocabulary = 1 + max(tokenizer.get_vocab().values())  # ids may leave gaps
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        raise InputError(f"batch: token ids {int(ids.min())} to {int(ids.max())}, expected those of the tokenizer, "
                         f"below {vocabulary}")  # fmt: skip
    objective = MaskedObjective(mask, special, vocabulary, share)
    predicted = objective.predicted(ids.shape[1])
    ordinary = int((~torch.isin(ids.cpu(), torch.tensor(special))).sum(1).min())
    if ordinary < predicted:
        raise InputError(f"batch: a row has {ordinary} ordinary tokens, expected at least {predicted} to mask")
    return MaskedBatches(batch, objective, masks, seed)
