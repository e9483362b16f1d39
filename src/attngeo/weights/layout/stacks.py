"""Group the attention layers of a model into named stacks, and number the layers of each stack."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attngeo.weights.layout.diffusers import group_layers
from attngeo.weights.layout.facts import family, sub_configs
from attngeo.weights.layout.layer import Layer

_MODALITIES = (
    ("vision", re.compile(r"vision|visual|image|\bvit\b|\bimg", re.IGNORECASE)),
    ("audio", re.compile(r"audio|speech", re.IGNORECASE)),
    ("text", re.compile(r"text|language|\bllm?\b", re.IGNORECASE)),
)
_CAUSAL = re.compile(r"CausalLM|LMHead|ForConditionalGeneration")


def name_stacks(layers: Sequence[Layer], config: Mapping[str, Any] | None) -> list[Layer]:
    """Return the layers with the names of their stacks: stacks in order of appearance, layers numbered from 0 in each.

    Layers whose paths differ in their numbers alone (they share a template) form one stack. Cross-attention layers form
    the stack "cross".
    """
    if config is not None and "_class_name" in config:
        groups = group_layers(layers, config)
    else:
        examples = {layer.template: layer for layer in layers if not layer.cross}
        with_cross = {_block(layer.template) for layer in layers if layer.cross}
        names = _stack_names(examples, with_cross, config)
        groups = {}
        for layer in layers:
            group = ("cross", "") if layer.cross else (names[layer.template], layer.template)
            groups.setdefault(group, []).append(layer)
    return [
        replace(layer, stack=stack, layer=number)
        for stack, members in zip(_unique_names(list(groups)), groups.values(), strict=True)
        for number, layer in zip(_layer_numbers(members), members, strict=True)
    ]


def _layer_numbers(layers: Sequence[Layer]) -> list[int]:
    """Return the numbers in the paths if one number tells the layers apart, otherwise 0, 1, 2, …"""
    numbers = [layer.indices[-1] if layer.indices else 0 for layer in layers]
    one_number = len({layer.template for layer in layers}) == 1 and len({layer.indices[:-1] for layer in layers}) == 1
    return numbers if one_number and len(set(numbers)) == len(numbers) else list(range(len(layers)))


def _block(template: str) -> str:
    """Return the path around an attention module, which self- and cross-attention of one block share."""
    return template.rpartition(".")[0]


def _stack_names(
    examples: Mapping[str, Layer], with_cross: Collection[str], config: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return the name of each template's stack: by modality, by "encoder" or "decoder" in the path, or by direction.

    examples: a layer of each template
    """
    modalities = {template: _modality(layer) for template, layer in examples.items()}
    names: dict[str, str] = {}
    for template, modality in modalities.items():
        side = _side(template)
        same = [other for other in modalities if modalities[other] == modality]
        if modality in ("vision", "audio") and _has_other_modality(config, modality):
            # All other stacks of the model may have been left out; this one is still not its language model.
            names[template] = _with_side(modality, side, same)
        elif len(set(modalities.values())) == 1:
            # An encoder-decoder may have one stack left (LongT5's encoder attends in blocks); its path still names it.
            pair = len(same) > 1 or (config or {}).get("is_encoder_decoder") is True
            names[template] = side if pair and side else _direction(template, with_cross, config)
        elif not modality:
            # Beside a named stack, the unnamed one is the language model, or a decoder on top of a backbone.
            text = {"vision", "audio"} & set(modalities.values()) and side != "decoder"
            names[template] = "text" if text else side or _direction(template, with_cross, config)
        else:
            names[template] = _with_side(modality, side, same)
    return names


def _with_side(modality: str, side: str, same: Sequence[str]) -> str:
    """Return the name of a modality's stack, with its side where the modality has an encoder and a decoder."""
    return f"{modality}-{side}" if len({_side(other) for other in same}) > 1 and side else modality


def _has_other_modality(config: Mapping[str, Any] | None, modality: str) -> bool:
    """Return whether a config has a sub-config of another modality than this one."""
    keys = [key for key in sub_configs(config or {}) if key.endswith("_config")]
    return any(words.search(key) for key in keys for name, words in _MODALITIES if name != modality)


def _modality(layer: Layer) -> str:
    """Return "vision", "audio" or "text", else the name of the layer's sub-config, "" for the whole config."""
    scope = layer.scope.name if layer.scope is not None else None
    for name, words in _MODALITIES:
        if words.search(scope or layer.path):
            return name
    return scope or ""


def _side(template: str) -> str:
    """Return "encoder" or "decoder", whichever occurs last in the path; "" where neither does."""
    sides = re.findall(r"(?:enc|dec)oder(?!_)|\b(?:enc|dec)\b", template.lower())  # GGUF shortens the words
    return sides[-1][:3] + "oder" if sides else ""


def _direction(template: str, with_cross: Collection[str], config: Mapping[str, Any] | None) -> str:
    """Return "decoder" for causal attention, "encoder" for bidirectional attention."""
    config = config or {}
    model_type = str(config.get("model_type", ""))
    causal = family(model_type).causal
    if config.get("is_decoder") is True:
        causal = True
    if model_type.startswith("gguf:") and (causal is None or "is_causal" in config):
        causal = config.get("is_causal", True)  # GGUF files say so only where attention is not causal
    architectures = config.get("architectures")
    if causal is None and isinstance(architectures, (list, tuple)) and architectures:
        causal = any(_CAUSAL.search(str(name)) for name in architectures)
    if causal is None:  # cross-attention lies beside the self-attention of a decoder
        causal = _side(template) == "decoder" or _block(template) in with_cross
    return "decoder" if causal else "encoder"


def _unique_names(groups: Sequence[tuple[str, str]]) -> list[str]:
    """Return a name for each group (name, part); of several with one name, the later ones get a word of their part.

    >>> _unique_names([("encoder", "layers.*.attn1"), ("encoder", "layers.*.attn2"), ("cross", "")])
    ['encoder', 'encoder-attn2', 'cross']
    """
    unique: list[str] = []
    for name, part in groups:
        same = [other for its, other in groups if its == name]
        if (index := same.index(part)) > 0:
            others = {word for other in same if other != part for word in other.split(".")} | {"*"}
            name = f"{name}-{next((word for word in part.split('.') if word not in others), index)}"
        unique.append(f"{name}-{index}" if name in unique else name)
    return unique
