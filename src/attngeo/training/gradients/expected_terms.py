"""`expected_terms`: the update of each head's form, averaged over many backward passes.

The theory of the update speaks of its expectation over masks and over text. One backward pass under masked training
says little about it: only the masked rows of the last layer have any β, so that β_ij and β_ji hardly ever both exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from attngeo.arguments import finite_number
from attngeo.arrays import AnyFloats, Bools, to_numpy
from attngeo.errors import InputError
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.training.gradients.expected_scores import ExpectedScores, ExpectedTerms
from attngeo.training.gradients.growth import pair_kinds
from attngeo.training.gradients.layer_sums import LayerSums
from attngeo.training.gradients.single_pass import single_pass

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

    from attngeo.training.gradients.result import GradientTerms, LayerTerms

_HALVES = 2
_Layer = tuple[str, int]  # stack, layer
_Key = tuple[str, int, int]  # stack, layer, head


@accepts_progress_bar
def expected_terms(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    layers: int | Collection[int] | None = None,
    loss: Callable[[ModelOutput], Tensor] | None = None,
    same_rows: bool = False,
    memory: int = 2**30,
    progress: Progress | bool | None = None,
) -> ExpectedTerms:
    """Return the negative gradient of the loss for the form of each head, averaged over `batches`, and its scores.

    model, layers, loss  as in `gradient_terms`
    batches     at least 2, of one shape; even and odd ones are the two halves that are compared
    same_rows   all batches hold the same text under different masks, so that β can be averaged pair by pair
    memory      bytes that the sums may take; heads that do not fit are averaged in further rounds over the batches
    progress    called with (passes done, passes in all); True draws a progress bar

    The model itself and the terms of one pass need memory besides.

    >>> import torch
    >>> from transformers import AutoModelForCausalLM
    >>> model = AutoModelForCausalLM.from_pretrained(attngeo.bundled("decoder"))
    >>> rows = torch.arange(20, 68).reshape(4, 1, 12)  # [batches, rows, tokens]
    >>> terms = attngeo.expected_terms(model, [{"input_ids": ids, "labels": ids} for ids in rows])
    >>> terms.scores[0].pairing is None, len(terms)
    (True, 16)
    """
    if isinstance(batches, Mapping):
        raise InputError("batches: one mapping of names to tensors, expected a list of at least 2")
    batches = batches if isinstance(batches, Sequence) else list(batches)  # they are read more than once
    if len(batches) < _HALVES:
        raise InputError(f"batches: {len(batches)}, expected at least {_HALVES}")
    first = single_pass(model, batches[0], layers=layers, loss=loss)
    rounds = _rounds(first, same_rows, finite_number(memory, "memory"))
    scores: dict[_Key, ExpectedScores] = {}
    losses: list[float] = []
    for number, parts in enumerate(rounds):
        sums = {layer: LayerSums(heads, same_rows, model.device) for layer, heads in parts.items()}
        for index, batch in enumerate(batches):
            numbers = sorted({layer for _, layer in parts})
            terms = first if number == index == 0 else single_pass(model, batch, layers=numbers, loss=loss)
            if number == 0:
                losses.append(terms.loss)
            for layer in terms.layers:
                if (layer.stack, layer.layer) in sums:
                    kinds, text = _kinds(model, batch, layer), _text(model, batch, layer)
                    sums[layer.stack, layer.layer].add(layer, index % _HALVES, kinds, text)
            if callable(progress):
                progress(number * len(batches) + index + 1, len(rounds) * len(batches))
        for one in sums.values():
            scores |= {(row.stack, row.layer, row.head): row for row in one.scores()}
    ordered = (replace(scores[head.stack, head.layer, head.head], label=head.label) for head in first)
    return ExpectedTerms(len(batches), float(np.mean(losses)), tuple(ordered), first.name)


def _kinds(model: PreTrainedModel, batch: Mapping[str, Tensor], layer: LayerTerms) -> AnyFloats | None:
    """Return the kind of each pair of positions of a layer, [S, N, N]; None where its token ids are not known."""
    ids = _by_token(_token_ids(model, batch, layer.stack), layer)
    return None if ids is None else pair_kinds(ids)


def _text(model: PreTrainedModel, batch: Mapping[str, Tensor], layer: LayerTerms) -> Bools | None:
    """Return whether each position of a layer is text and not padding, [S, N]; None where there is no padding."""
    name = "decoder_attention_mask" if _is_beside_encoder(model, layer.stack) else "attention_mask"
    mask = _by_token(batch.get(name), layer)
    return None if mask is None or mask.all() else mask.astype(bool)


def _by_token(values: Tensor | None, layer: LayerTerms) -> AnyFloats | None:
    """Return values of tokens [rows, N] for the sequences of a layer, [S, N]; None where they are not of its tokens."""
    sequences, length, _ = layer.x.shape
    if values is None or values.dim() != 2 or values.shape[1] != length:
        return None
    # A layer that the model uses several times (ALBERT) has the sequences of all its calls, one call after another.
    return np.tile(to_numpy(values), (sequences // len(values), 1))


def _is_beside_encoder(model: PreTrainedModel, stack: str) -> bool:
    """Tell whether a stack is the decoder of a model with an encoder."""
    return getattr(model.config, "is_encoder_decoder", False) and "decoder" in stack


def _token_ids(model: PreTrainedModel, batch: Mapping[str, Tensor], stack: str) -> Tensor | None:
    """Return the token ids [S, N] that a stack reads; a decoder beside an encoder has its own, or reads the labels."""
    if not _is_beside_encoder(model, stack):
        return batch.get("input_ids")
    if "decoder_input_ids" in batch:
        return batch["decoder_input_ids"]
    shifted = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    return None if shifted is None or "labels" not in batch else shifted(labels=batch["labels"])


def _rounds(terms: GradientTerms, same_rows: bool, memory: float) -> list[dict[_Layer, list[int]]]:
    """Return the heads of each layer whose sums are kept at the same time, round by round."""
    rounds: list[dict[_Layer, list[int]]] = [{}]
    used = 0
    for head in terms:
        sequences, length, width = head.x.shape
        needed = 8 * _HALVES * (2 * width**2 + (sequences * length**2 if same_rows else 0))
        if rounds[-1] and used + needed > memory:
            rounds.append({})
            used = 0
        rounds[-1].setdefault((head.stack, head.layer), []).append(head.head)
        used += needed
    return rounds
