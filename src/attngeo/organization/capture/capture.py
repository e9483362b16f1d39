"""`capture`: run a model on an input and keep what its heads made of it, queries × keys × heads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from attngeo.errors import InputError
from attngeo.live.attention_modules import Stack, kind_of, parameters, stacks_of, tower_for
from attngeo.live.load import Live, live_model, run
from attngeo.organization.capture.inputs import DECODER, Feed, choose_stack, feed_of, listed, modality, position_names
from attngeo.organization.capture.network_tensor import STAGES, NetworkTensor
from attngeo.weights.layout.layers import chosen_layers


def capture(
    model_or_ref: Any,
    inputs: Any,
    *,
    stage: str = "logits",
    layers: int | Collection[int] | None = None,
    stack: str | None = None,
    target: str | None = None,
    truncate: bool = False,
    tokenizer: Any = None,
    processor: Any = None,
    sampling_rate: int | None = None,
    device: str | None = None,
) -> NetworkTensor | list[NetworkTensor]:
    """The attention of a model on `inputs`, T[query, key, head] over all layers; one tensor an input.

    model_or_ref   a folder, a GGUF file, a hub id `org/name[@revision]`, or a live transformers model, left as it was
    inputs    a text, an image (path, PIL), a sound (path of a WAV file, waveform), a mapping of ready tensors, or a
              list of those. A string is a text unless the model reads none; a `Path` is an image or a sound.
    stage     "logits": scaled products with soft-cap and position bias, before the mask, which stands beside them;
              "probabilities": what the model's own softmax made of them
    layers    only these layers; stack: "encoder", "decoder", "cross", "vision", "text", … as in `score`
    target    what the decoder of an encoder-decoder reads; without it, the text itself, behind the start token
    truncate  cut off what is longer than the model's window
    tokenizer, processor   for a live model that was not loaded from a folder; sampling_rate: of a waveform
    device    where a reference is run, "cuda" for one; a live model runs where it is

    Padding is cut off, also where the model itself attends to it (Whisper hears 30 s whatever the sound).

    >>> import torch, transformers
    >>> config = transformers.BertConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, vocab_size=60)
    >>> capture(transformers.BertModel(config), {"input_ids": torch.arange(9)[None]})
    NetworkTensor(logits, 9 queries × 9 keys × 8 heads)

    With a model's own tokenizer, `capture("folder", "The form of the heads.").queries` are its tokens.
    """
    if stage not in STAGES:
        raise InputError(f"stage {stage!r}: expected one of {', '.join(STAGES)}")
    wanted = chosen_layers(layers)
    ones, single = listed(inputs)
    live = live_model(model_or_ref, tokenizer=tokenizer, processor=processor, device=device)
    stacks = stacks_of(live.model)
    tensors = []
    for one in ones:
        reads = modality(one, live, stack)
        chosen = choose_stack(live, stacks, stack, reads)
        chosen.check_heard(kind_of(live.model), wanted)
        feed = feed_of(one, live, chosen, reads=reads, target=target, truncate=truncate, rate=sampling_rate)
        tensors.append(_run(live, stacks, chosen, feed, wanted, stage))
    return tensors[0] if single else tensors


def _run(
    live: Live, stacks: dict[str, Stack], stack: Stack, feed: Feed, layers: frozenset[int] | None, stage: str
) -> NetworkTensor:
    from attngeo.live.attention_hook import Recorder, recording

    model = tower_for(live.model, stack, feed.needed)
    taken = {*parameters(model), *feed.needed}
    tensors = {name: _placed(value, live.model) for name, value in feed.tensors.items() if name in taken}
    if "use_cache" in taken:
        tensors["use_cache"] = False
    second = DECODER in tensors
    sides = (
        "decoder" if second and (stack.cross or "decoder" in stack.name) else "encoder",
        "decoder" if second and "decoder" in stack.name else "encoder",
    )
    cuts = (_cut(live, feed, stack, sides[0]), _cut(live, feed, stack, sides[1]))
    recorder = Recorder(kind_of(live.model), stack, layers, stage, cuts)
    with recording(live.model, stacks, recorder):
        for _ in range(2):
            recorder.begin()
            run(model, kind_of(live.model), tensors)
            if not recorder.sequence:
                raise InputError(f"{kind_of(live.model)}: this input does not reach its stack {stack.name}")
            if recorder.complete():
                break
    if not recorder.plan:
        last = len(recorder.sequence) - 1 if recorder.shared else stack.attentions[-1].layer
        raise InputError(f"{kind_of(live.model)}: none of the layers asked for exist; they run from 0 to {last}")
    if recorder.values is None or recorder.lengths is None:
        raise InputError(f"{kind_of(live.model)}: used other layers when run again, nothing can be captured")
    names = [
        _picked(position_names(feed, length, side), kept)
        for length, side, kept in zip(recorder.lengths, sides, recorder.kept, strict=True)
    ]
    return NetworkTensor(recorder.values, recorder.mask(), names[0], names[1], recorder.heads, stage, live.name)


def _placed(value: Any, model: Any) -> Any:
    """Where the model is, pixels and sounds in its precision; ids and masks of whole numbers stay what they are."""
    return value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)


def _cut(live: Live, feed: Feed, stack: Stack, side: str) -> Any:
    """length of an axis → indices of what is not padding there, None where nothing is padded."""
    mask = feed.tensors.get("decoder_attention_mask" if side == "decoder" else "attention_mask")
    if mask is None or mask.dim() != 2 or bool(mask.all()) or stack.name.startswith("vision"):
        return lambda length: None

    def kept(length: int) -> Any:
        import torch

        row = mask[0].bool().cpu()
        if not row.any():
            raise InputError("attention_mask: shuts everything out")
        if len(row) != length and len(row) % length == 0:  # a convolution made one position of several frames
            row = row.reshape(length, -1).any(1)
        elif len(row) != length and hasattr(live.model, "_get_feat_extract_output_lengths"):
            heard = int(live.model._get_feat_extract_output_lengths(row.sum()))
            row = torch.arange(length) < heard
        if len(row) != length:
            raise InputError(f"attention_mask: {len(row)} long, the attention has {length} positions")
        return torch.nonzero(row)[:, 0]

    return kept


def _picked(names: tuple[str, ...], kept: Any) -> tuple[str, ...]:
    return names if kept is None else tuple(names[place] for place in kept.tolist())
