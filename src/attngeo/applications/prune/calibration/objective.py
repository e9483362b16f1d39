"""`Objective`: the loss that a model is measured by: next token, masked tokens, or its output without such a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attngeo.errors import InputError
from attngeo.live.load import LoadedModel
from attngeo.training.data.masking import MaskedObjective
from attngeo.weights.layout.families import family

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEXT_TOKEN, MASKED, OUTPUT = "next token", "masked tokens", "output"
IGNORED = -100  # target of a position that is not predicted
_MASKED_SHARE = 0.15


@dataclass(frozen=True)
class Objective:
    """What a model predicts.

    next token     the token after each position, of a decoder
    masked tokens  15% of the tokens, drawn at random, of an encoder
    output         nothing: a model without a language-model head is compared with itself
    """

    kind: str
    masking: MaskedObjective | None = None

    def prepare(self, inputs: dict[str, Tensor], generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return what the model reads in one row, and the targets [1, T] of its positions (IGNORED: none)."""
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
        if self.kind == OUTPUT:
            return inputs, None
        side = "decoder_" if "decoder_input_ids" in inputs else ""
        ids, mask = inputs[f"{side}input_ids"], inputs.get(f"{side}attention_mask")  # [1, T]
        read = torch.ones_like(ids) if mask is None else mask  # [1, T], 0: padding
        if self.masking is None:
            following = torch.where((read[:, :-1] != 0) & (read[:, 1:] != 0), ids[:, 1:], IGNORED)  # [1, T - 1]
            return inputs, torch.cat([following, torch.full_like(ids[:, :1], IGNORED)], 1)
        kept = read[0].nonzero()[:, 0]  # [tokens], where there is no padding
        masked, positions, labels = (part[0] for part in self.masking.prepare(ids[None, :, kept], generator))
        changed = ids.scatter(1, kept[None], masked)  # [1, T]
        return {**inputs, "input_ids": changed}, torch.full_like(ids, IGNORED).scatter(1, kept[positions], labels)


def objective_of(loaded: LoadedModel) -> Objective:
    """Return the objective of a model: masked tokens for encoders and next tokens for decoders with such a head."""
    model = loaded.model
    if model.get_output_embeddings() is None:
        return Objective(OUTPUT)
    if _is_causal(model):
        return Objective(NEXT_TOKEN)
    return Objective(MASKED, _masking(loaded))


def _is_causal(model: PreTrainedModel) -> bool:
    config = model.config
    decodes = getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False)
    return bool(decodes or family(str(config.model_type)).causal)


def _masking(loaded: LoadedModel) -> MaskedObjective:
    tokenizer: Any = loaded.tokenizer
    mask = getattr(tokenizer, "mask_token_id", None)
    if mask is None:
        raise InputError(
            f"{loaded.name}: an encoder is measured by masked tokens, but no tokenizer with a mask token was found; "
            "pass one with tokenizer="
        )
    special = tuple(sorted(set(tokenizer.all_special_ids)))
    vocabulary = int(loaded.model.get_input_embeddings().num_embeddings)
    return MaskedObjective(int(mask), special, vocabulary, _MASKED_SHARE)
