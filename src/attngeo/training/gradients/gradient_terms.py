"""`gradient_terms`: the gradient of a loss, written as the rank-1 terms it adds to the form of each head.

Under masked training it can be averaged over `masked_batches`, the same rows of text under many random masks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from attngeo.arguments import whole_number
from attngeo.errors import InputError
from attngeo.live.attention_modules import attention_stacks
from attngeo.live.load import load_model
from attngeo.training.data.masking import MaskedObjective
from attngeo.training.gradients.expected_terms import ExpectedTerms, expected_terms
from attngeo.training.gradients.single_pass import single_pass
from attngeo.training.gradients.terms import GradientTerms

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput


@overload
def gradient_terms(
    model: PreTrainedModel,
    batch: Mapping[str, Tensor],
    *,
    layers: int | Collection[int] | None = ...,
    loss: Callable[[ModelOutput], Tensor] | None = ...,
) -> GradientTerms: ...


@overload
def gradient_terms(
    model: PreTrainedModel,
    batch: Mapping[str, Tensor],
    *,
    layers: int | Collection[int] | None = ...,
    loss: Callable[[ModelOutput], Tensor] | None = ...,
    masks: int,
    tokenizer: PreTrainedTokenizerBase | None = ...,
    share: float = ...,
    seed: int = ...,
    memory: int = ...,
) -> ExpectedTerms: ...


def gradient_terms(
    model: PreTrainedModel,
    batch: Mapping[str, Tensor],
    *,
    layers: int | Collection[int] | None = None,
    loss: Callable[[ModelOutput], Tensor] | None = None,
    masks: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    share: float = 0.15,
    seed: int = 0,
    memory: int = 2**30,
) -> GradientTerms | ExpectedTerms:
    """Return the negative gradient of the loss on `batch` for the form of each self-attention head.

        −∂L/∂M = c Σ_ij β_ij x_i x_jᵀ       β_ij = −∂L/∂Â_ij, Â the attention logits, x the token vectors

    model   a transformers model that `capture` supports; its weights, `.grad`, train mode and hooks are left unchanged
    batch   tensors as the model's forward takes them, with labels; masked padding after a text contributes nothing
    layers  only these layers of each stack; the memory grows with them (β: sequences × heads × tokens²)
    loss    a function of the model's output that returns the loss; by default the model's own loss
    masks   average over this many random masks of the batch, whose ids are then given without masks and labels
    tokenizer, share, seed, memory  for masks: the tokenizer with the mask token, the share of the tokens to predict,
            the seed of the masks, and the bytes that the sums may take (see `expected_terms`)

    Dropout is off. Sums run over the sequences of the batch and, for shared layers, over every call. With a soft-cap, β
    refers to the logits before it; with rotary embedding or QK-norm, to the products of the rotated or normalised
    queries and keys. c includes a factor by which the model multiplies its queries before the product.

    >>> import torch
    >>> from transformers import AutoModelForMaskedLM
    >>> model = AutoModelForMaskedLM.from_pretrained(attngeo.bundled("encoder"))
    >>> ids = torch.arange(20, 32)[None]  # [batch, tokens]
    >>> terms = attngeo.gradient_terms(model, {"input_ids": ids, "labels": ids})
    >>> terms["L0H3"].beta.shape
    (1, 12, 12)
    """
    if masks is None:
        return single_pass(model, batch, layers=layers, loss=loss)
    batches = _masked_by_tokenizer(batch, tokenizer, masks, share, seed)
    if set(attention_stacks(load_model(model).model)) == {"decoder"}:
        raise InputError("masks: the model reads from left to right; it is averaged over batches, by expected_terms")
    return expected_terms(model, batches, layers=layers, loss=loss, same_rows=True, memory=memory)


def masked_batches(
    batch: Mapping[str, Tensor], objective: MaskedObjective, masks: int, seed: int = 0
) -> list[dict[str, Tensor]]:
    """Return `masks` batches of the same rows; the mask of batch k depends on the seed and k alone.

    batch: input_ids [S, N] without masks, and what else the model takes
    """
    ids = batch["input_ids"].cpu()  # masks are drawn on the CPU, so that they are the same on every device
    batches = []
    for number in range(masks):
        # torch's CPU generator uses the lower 32 bits; times an odd number, different seeds differ in them.
        draw = torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**32)
        read, positions, targets = (part[0] for part in objective.prepare(ids[None], draw))
        labels = torch.full_like(ids, -100).scatter(-1, positions, targets)  # [S, N]
        batches.append({**batch, "input_ids": read, "labels": labels})
    return batches


def _masked_by_tokenizer(
    batch: Mapping[str, Tensor], tokenizer: PreTrainedTokenizerBase | None, masks: int, share: float, seed: int
) -> list[dict[str, Tensor]]:
    """Return `masks` maskings of the rows of `batch`: BERT's rule, which predicts `share` of the tokens of each row."""
    whole_number(masks, "masks", 2)  # they are also compared by halves
    if not 0 < share < 1:
        raise InputError(f"share: {share}, expected a share of the tokens between 0 and 1")
    ids = batch.get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise InputError("batch: masks need input_ids of shape [sequences, tokens], without masks")
    mask = getattr(tokenizer, "mask_token_id", None)
    if tokenizer is None or mask is None:
        raise InputError("tokenizer: masks need a tokenizer with a mask token; a causal model is averaged over batches "
                         "instead, by expected_terms")  # fmt: skip
    special = tuple(sorted({*tokenizer.all_special_ids, mask}))
    vocabulary = 1 + max(tokenizer.get_vocab().values())  # ids may leave gaps
    if int(ids.max()) >= vocabulary:
        raise InputError(f"batch: token id {int(ids.max())}, expected those of the tokenizer, below {vocabulary}")
    objective = MaskedObjective(mask, special, vocabulary, share)
    if int((~torch.isin(ids.cpu(), torch.tensor(special))).sum(1).min()) < objective.predicted(ids.shape[1]):
        raise InputError("batch: a row has fewer ordinary tokens than are to be masked")
    return masked_batches(batch, objective, masks, seed)
