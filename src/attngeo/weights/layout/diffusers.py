"""What is particular to models of diffusers: configs with one value per block, cross-attention, stacks.

A UNet has one config value per block, which may count heads or give the size of a head; where each class declares its
heads is a fact about the class (`Family.heads`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attngeo.arguments import is_whole
from attngeo.errors import LayoutError
from attngeo.weights.layout.facts import Scope, ends_with, family
from attngeo.weights.layout.layer import Layer, path_template
from attngeo.weights.layout.storage import DeclaredHeads, Shapes
from attngeo.weights.layout.table import FROM_SECOND, SECOND, TO_SECOND
from attngeo.weights.sources.checkpoint import PREFIX

_BLOCK = re.compile(r"\b(down|mid|up)_blocks?\b(?:\.(\d{1,9}))?")
_UNET_PART = re.compile(r"\b(transformer_in|down_block|mid_block|up_block)s?\b")
_UNET_ORDER = ("transformer_in", "down_block", "mid_block", "up_block")
_TEMPORAL = re.compile(r"temporal|\btemp_|\bmotion_modules\b|\btransformer_in\b")
_REFINER = re.compile(r"\b[a-z]+_refiner\b")  # blocks that prepare one stream before the two meet
_TEXT = re.compile(r"\b(?:text|txt|context)_")
_CODER = re.compile(r"\b(encoder|decoder)\.")


def of_block(value: Any, path: str, *, mirrored: bool = True) -> Any:
    """Return the entry of a config value that describes the block of `path`; a value for all blocks as it is.

    mirrored: the list is in the order of the blocks on the way down, and read backwards on the way up

    >>> of_block([5, 10, 20], "up_blocks.0.attentions.1"), of_block(8, "up_blocks.0.attentions.1")
    (20, 8)
    """
    if not isinstance(value, (list, tuple)) or not value:
        return value
    match = _BLOCK.search(path)
    if match is None:
        return value[-1]
    if match[1] == "mid":
        # The middle block has no entry of its own: it is built like the last block on the way down.
        return value[-1] if not isinstance(value[-1], bool) else False
    number = int(match[2] or 0)
    if number >= len(value):
        return None
    return value[-1 - number] if match[1] == "up" and mirrored else value[number]


def is_cross(path: str, scope: Scope) -> bool | None:
    """Return whether the layer at `path` is cross-attention; None: the names and shapes of its tensors decide.

    The layers that are cross-attention in a live model of the class are known (`Family.cross`). Two switches of a
    config change that: `only_cross_attention` and `double_self_attention`.
    """
    last = path.rpartition(".")[2]
    if last in (TO_SECOND, FROM_SECOND):
        return True
    if last == "attn1" and of_block(scope.get("only_cross_attention", False), path):
        return True
    if last == "attn2" and scope.config.get("double_self_attention") is True:
        return False
    known = family(str(scope.get("model_type", ""))).cross
    if known is None:
        return True if last == "attn2" else None
    return any(ends_with(path_template(path), ending) for ending in known)


def declared_heads(layer: Layer, shapes: Shapes) -> DeclaredHeads | None:
    """Return what the config declares about the heads of `layer`, by the first rule that names a part of its path.

    None: as in a transformers config. A rule is a mapping:

        in      parts of a path; empty: all paths
        counts  config keys that count heads; the first that is set is the one
        size    the config key that gives the size of a head, or a list of its parts; null: one head
        fixed   a number of heads that no key declares
    """
    assert layer.scope is not None
    for rule in layer.facts.heads:
        if not rule["in"] or any(part in layer.path for part in rule["in"]):
            key, count = _apply(rule, layer, layer.scope, shapes)
            # Without the scope: these configs may call a head count `attention_head_dim`.
            return DeclaredHeads(key, count, None, layer.cross)
    return None


def _apply(rule: Mapping[str, Any], layer: Layer, scope: Scope, shapes: Shapes) -> tuple[str, int]:
    """Return the config key that gives the head count, and the count."""

    def stated(key: str) -> Any:  # null is a value
        return scope.config[key] if key in scope.config else scope.defaults.get(key)

    def whole(key: str, value: Any) -> int:
        if not is_whole(value, lowest=1):
            raise LayoutError(f"config.json: {key} is {value!r}, expected a positive whole number")
        return value

    if "fixed" in rule:
        return str(scope.get("model_type", "")).removeprefix(PREFIX), rule["fixed"]
    if "counts" in rule:
        key = next((key for key in rule["counts"] if stated(key) is not None), rule["counts"][0])
        return key, whole(key, of_block(stated(key), layer.path))
    key = rule["size"]
    rows, _ = layer.storage.matrix_shape(layer.storage.query, shapes)
    value = stated(key)
    if key.startswith("axes") and isinstance(value, (list, tuple)):
        size = sum(whole(key, part) for part in value)
    elif (value := of_block(value, layer.path, mirrored=False)) is None:
        return key, 1
    else:
        size = whole(key, value)
    if rows % size:
        raise LayoutError(f"{layer.storage.query}: {rows} rows do not divide into heads of size {size} ({key})")
    return key, rows // size


def group_layers(layers: Sequence[Layer], config: Mapping[str, Any]) -> dict[tuple[str, str], list[Layer]]:
    """Return {(kind of stack, part of the model): its layers in order}.

    "self"       self-attention; the layers of a UNet are one stack, from the first on the way down to the last on the
                 way up
    "cross"      cross-attention
    "cross-added"
                 cross-attention of the same queries to a second condition, such as an image beside a text
    "temporal"   attention between the frames of a video
    "single"     self-attention over both streams of a model with joint attention, after they have been joined
    "image", "text", "image-to-text", "text-to-image"
                 joint attention: each stream with itself, and queries of one stream with keys of the other; the first
                 stream of a model for videos is called "video"
    "token-refiner", "context-refiner", "noise-refiner"
                 self-attention of one stream before the two are joined
    "encoder", "decoder"
                 the two parts of an autoencoder
    """
    joint = {layer.path.rpartition(".")[0] for layer in layers if layer.path.endswith(f".{SECOND}")}
    cross = {layer.path for layer in layers if layer.cross}
    first = "video" if re.search("3D|Video", str(config.get("_class_name"))) else "image"
    groups: dict[tuple[str, str], list[Layer]] = {}
    for layer in sorted(layers, key=_order):
        part = "unet" if _UNET_PART.search(layer.path) else layer.template
        groups.setdefault((_kind(layer, joint, cross, first), part), []).append(layer)
    return groups


def _order(layer: Layer) -> tuple[Any, ...]:
    """Return what the layers are sorted by: a UNet runs down, mid, up, and its blocks in order."""
    match = _UNET_PART.search(layer.path)
    return (_UNET_ORDER.index(match[1]), layer.indices, layer.template) if match else (9, layer.template, layer.indices)


def _kind(layer: Layer, joint: set[str], cross: set[str], first: str) -> str:
    """Return the name of the stack of `layer`, before several stacks of one name are told apart."""
    path, _, last = layer.path.rpartition(".")
    if last == SECOND:
        return "text"
    if last == FROM_SECOND:
        return f"text-to-{first}"
    if last == TO_SECOND:
        return f"{first}-to-text" if path in joint else "cross-added" if path in cross else "cross"
    if layer.path in joint:
        return first
    if _TEMPORAL.search(layer.path):
        return "temporal-cross" if layer.cross else "temporal"
    if layer.cross:
        return "cross"
    if match := _CODER.search(layer.path):
        return match[1]
    if joint and "single" in layer.path:
        return "single"
    if match := _REFINER.search(layer.path):
        return match[0].replace("_", "-")
    return "text" if _TEXT.search(layer.path) else "self"
