"""`capture`: run a model on an input and record its attention as a network tensor, queries × keys × heads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

from attngeo.errors import InputError
from attngeo.live.attention_modules import Stack, attention_stacks, forward_arguments, submodel_for, type_label
from attngeo.live.load import LoadedModel, ModelRef, Processor, load_model, run_model
from attngeo.organization.inputs import (
    DECODER_IDS,
    SOUND,
    TEXT,
    ModelInput,
    SingleInput,
    choose_stack,
    modality,
    position_labels,
    prepare_input,
    split_inputs,
)
from attngeo.organization.tensor import NetworkTensor, check_stack, check_stage
from attngeo.weights.layout.layers import check_highest, chosen_layers

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from attngeo.organization.recorder import PaddingFilter


def capture(
    model_or_ref: ModelRef,
    inputs: SingleInput | Sequence[SingleInput],
    *,
    stage: str = "logits",
    layers: int | Collection[int] | None = None,
    stack: str | None = None,
    target: str | None = None,
    truncate: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    processor: Processor | None = None,
    sampling_rate: int | None = None,
    device: str | None = None,
) -> NetworkTensor | list[NetworkTensor]:
    """Return the attention of a model on `inputs`, T[query, key, head] over all layers: one tensor per input.

    model_or_ref   a folder, a GGUF file, a hub id `org/name[@revision]`, or a transformers model, whose state is
                   restored afterwards
    inputs    a text, an image (path, PIL image), a sound (path of a WAV file, waveform), a mapping of prepared tensors,
              or a list of those. A string is a text unless the model reads no text; a `Path` is an image or a sound.
    stage     "logits": scaled products with soft-cap and position bias, before the mask, which is kept beside them;
              "probabilities": the output of the model's own softmax
    layers    only these layers
    stack     "encoder", "decoder", "cross", "vision", "text", … as in `score`
    target    the text that the decoder of an encoder-decoder reads; by default the input text, shifted right behind
              the decoder's start token
    truncate  truncate inputs that exceed the model's maximum length instead of raising an error
    tokenizer, processor   for a model that was not loaded from a folder
    sampling_rate          of a waveform, in samples per second
    device    the device on which a reference is run, for example "cuda"; a model that is given runs where it is

    Padding is removed, also where the model itself attends to it (Whisper pads every sound to 30 s).

    >>> import torch, transformers
    >>> config = transformers.BertConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, vocab_size=60)
    >>> capture(transformers.BertModel(config), {"input_ids": torch.arange(9)[None]})
    NetworkTensor(logits, 9 queries × 9 keys × 8 heads)

    With a tokenizer, the labels of the positions are tokens: `capture("folder", "The form of the heads.").queries`.
    """
    check_stage(stage)
    check_stack(stack)
    wanted_layers = chosen_layers(layers)
    given: dict[str, Any] = {"tokenizer": tokenizer, "processor": processor, "device": device}
    # What the config and the tokenizer of a reference refuse is found before its weights are loaded, which takes long.
    loaded = load_model(model_or_ref, **given, weights=False)
    single_inputs, is_single = split_inputs(inputs)
    prepared = _prepared(loaded, single_inputs, stack, wanted_layers, target, truncate, sampling_rate)
    if loaded.model.device.type == "meta":
        loaded = load_model(model_or_ref, **given)
    stacks = attention_stacks(loaded.model)
    tensors = [_record(loaded, stacks, stacks[name], one, wanted_layers, stage) for name, one in prepared]
    return tensors[0] if is_single else tensors


def check_inputs(
    refs: Iterable[Any],
    inputs: Any,
    *,
    stack: str | None = None,
    layers: int | Collection[int] | None = None,
    target: str | None = None,
    truncate: bool = False,
    sampling_rate: int | None = None,
) -> None:
    """Raise as `capture` would with these arguments, as far as the config and the tokenizer of a model can tell.

    refs: models, as `capture` takes them; one alone need not be checked, because `capture` begins with the same checks

    >>> check_inputs([attngeo.bundled(name) for name in ("decoder", "encoder")], "word " * 300)
    Traceback (most recent call last):
    attngeo.errors.InputError: text: 302 tokens, but ... reads at most 128; ...
    """
    models = list(refs)
    for ref in models if len(models) > 1 else ():
        loaded = load_model(ref, weights=False)
        _prepared(loaded, split_inputs(inputs)[0], stack, chosen_layers(layers), target, truncate, sampling_rate)


def _prepared(
    loaded: LoadedModel,
    single_inputs: Sequence[Any],
    stack: str | None,
    layers: frozenset[int] | None,
    target: str | None,
    truncate: bool,
    sampling_rate: int | None,
) -> list[tuple[str, ModelInput]]:
    """Return each input as arguments of the model's forward, with the name of the stack that it is for."""
    stacks, prepared = attention_stacks(loaded.model), []
    for single_input in single_inputs:
        reads = modality(single_input, loaded, stack)
        chosen = choose_stack(loaded, stacks, stack, reads)
        chosen.check_supported(type_label(loaded.model), layers)
        model_input = prepare_input(
            single_input, loaded, chosen, reads=reads, target=target, truncate=truncate, rate=sampling_rate
        )
        prepared.append((chosen.name, model_input))
    return prepared


def _record(
    loaded: LoadedModel,
    stacks: dict[str, Stack],
    stack: Stack,
    model_input: ModelInput,
    layers: frozenset[int] | None,
    stage: str,
) -> NetworkTensor:
    """Return the network tensor of one stack on one input."""
    # Imported here because they need torch; without it, load_model has raised an error that says so.
    from attngeo.live.attention_modules import recorded_attention
    from attngeo.organization.recorder import TensorRecorder

    whole, label = loaded.model, type_label(loaded.model)
    model = submodel_for(whole, stack, model_input.required)
    accepted = {*forward_arguments(model), *model_input.required}
    tensors = {name: _to_model(value, whole) for name, value in model_input.tensors.items() if name in accepted}
    has_decoder_ids = DECODER_IDS in tensors
    sides = (  # the sequence that the queries and the keys belong to
        "decoder" if has_decoder_ids and (stack.cross or "decoder" in stack.name) else "encoder",
        "decoder" if has_decoder_ids and "decoder" in stack.name else "encoder",
    )
    filters = (
        _padding_filter(loaded, model_input, stack, sides[0]),
        _padding_filter(loaded, model_input, stack, sides[1]),
    )
    recorder = TensorRecorder(label, stack, layers, stage, filters)
    with recorded_attention(whole, stacks, recorder):
        for _ in range(2):  # the second run is needed only where the first did not match the plan
            recorder.begin_run()
            run_model(model, tensors, within=whole)
            if not recorder.heads_of_calls:
                raise InputError(f"{label}: this input does not reach its stack {stack.name}")
            if recorder.finish_run():
                break
    last = len(recorder.heads_of_calls) - 1 if recorder.layers_are_calls else stack.attentions[-1].layer
    if not recorder.planned_heads:
        raise InputError(f"{label}: none of the requested layers exist; the layers are 0 to {last}")
    check_highest(layers, last, label)
    if recorder.values is None or recorder.lengths is None:
        raise InputError(f"{label}: a second run used other layers than the first, nothing can be captured")
    query_labels, key_labels = (
        _select(position_labels(model_input, length, side), kept)
        for length, side, kept in zip(recorder.lengths, sides, recorder.kept, strict=True)
    )
    return NetworkTensor(
        recorder.values, recorder.mask(), query_labels, key_labels, recorder.head_labels, stage, loaded.name
    )


def _to_model(value: Tensor, model: PreTrainedModel) -> Tensor:
    """Move `value` to the model's device, and to its precision unless it holds integers (ids, masks)."""
    device = value.device if model.device.type == "meta" else model.device  # offloaded: accelerate moves its inputs
    return value.to(device, model.dtype) if value.is_floating_point() else value.to(device)


def _padding_filter(loaded: LoadedModel, model_input: ModelInput, stack: Stack, side: str) -> PaddingFilter:
    """Return the function: length of an axis → indices of the positions that are not padding, None if all are kept."""
    own, encoder = (_mask_row(model_input, one) for one in (side, "encoder"))
    if stack.name.startswith("vision") or all(row is None or bool(row.all()) for row in (own, encoder)):
        return lambda length: None

    def kept_positions(length: int) -> Tensor | None:
        import torch

        row = own
        if side == "decoder" and row is not None and encoder is not None and length == len(row) + len(encoder):
            row = torch.cat([row, encoder])  # T5Gemma 2: one attention over the keys of the decoder and the encoder
        if row is None or bool(row.all()):
            return None
        if not row.any():
            raise InputError("attention_mask: all entries are 0, expected at least one position to attend to")
        if len(row) != length:
            row = _positions_of(row, length, loaded.model, SOUND in model_input.tensors)
        if len(row) != length:
            raise InputError(f"attention_mask: {len(row)} entries, but the attention has {length} positions")
        return torch.nonzero(row)[:, 0]

    return kept_positions


def _mask_row(model_input: ModelInput, side: str) -> Tensor | None:
    """Return which frames or tokens of a side are not padding, bool [N]; None where nothing says how many there are."""
    mask_name, ids_name = ("decoder_attention_mask", DECODER_IDS) if side == "decoder" else ("attention_mask", TEXT)
    mask, ids = (model_input.tensors.get(name) for name in (mask_name, ids_name))
    if mask is not None and mask.dim() == 2:
        return mask[0].bool().cpu()
    return None if ids is None else ids[0].new_ones(ids.shape[1]).bool().cpu()


def _positions_of(row: Tensor, length: int, model: PreTrainedModel, is_waveform: bool) -> Tensor:
    """Return which of `length` positions convolutions make of the samples or frames `row`; `row` where that is unknown.

    row:         bool [samples or frames], false for padding
    is_waveform: its kernels reach over several positions, so that the model itself has to count them
    """
    import torch

    count = getattr(model, "_get_feat_extract_output_lengths", None)
    if count is not None and (is_waveform or len(row) % length):
        # An adapter shortens what comes after the attention.
        options = {"add_adapter": False} if "add_adapter" in signature(count).parameters else {}
        positions, longest = (int(count(samples, **options)) for samples in (row.sum(), torch.tensor(len(row))))
        return torch.arange(length) < positions // max(longest // length, 1)  # SEW joins several positions to one
    if len(row) % length == 0 and not is_waveform:  # several frames are merged into one position
        return row.reshape(length, -1).any(1)
    return row


def _select(labels: tuple[str, ...], kept: Tensor | None) -> tuple[str, ...]:
    return labels if kept is None else tuple(labels[position] for position in kept.tolist())
