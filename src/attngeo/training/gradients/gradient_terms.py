"""`gradient_terms`: the gradient of a loss, written as the rank-1 terms it adds to the form of each head."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, overload

from torch import Tensor

from attngeo.errors import InputError
from attngeo.live.attention_modules import attention_stacks
from attngeo.live.load import load_model
from attngeo.training.gradients.expected_scores import ExpectedTerms
from attngeo.training.gradients.expected_terms import expected_terms
from attngeo.training.gradients.masked_batches import masked_batches
from attngeo.training.gradients.result import GradientTerms
from attngeo.training.gradients.single_pass import single_pass

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
        if tokenizer is not None:
            raise InputError("tokenizer: draws masks and needs masks, the number of them")
        return single_pass(model, batch, layers=layers, loss=loss)
    batches = masked_batches(batch, tokenizer, masks, share, seed)
    if set(attention_stacks(load_model(model).model)) == {"decoder"}:
        raise InputError("masks: the model reads from left to right; it is averaged over batches, by expected_terms")
    return expected_terms(model, batches, layers=layers, loss=loss, same_rows=True, memory=memory)
