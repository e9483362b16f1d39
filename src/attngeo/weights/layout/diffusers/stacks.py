"""Group the attention layers of a diffusers model into named stacks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from attngeo.weights.layout.diffusers.table import FROM_SECOND, SECOND, TO_SECOND
from attngeo.weights.layout.site import Location

AnyLocation = TypeVar("AnyLocation", bound=Location)

_UNET_PART = re.compile(r"\b(transformer_in|down_block|mid_block|up_block)s?\b")
_UNET_ORDER = ("transformer_in", "down_block", "mid_block", "up_block")
_TEMPORAL = re.compile(r"temporal|\btemp_|\bmotion_modules\b|\btransformer_in\b")
_REFINER = re.compile(r"\b[a-z]+_refiner\b")  # blocks that prepare one stream before the two meet
_TEXT = re.compile(r"\b(?:text|txt|context)_")
_CODER = re.compile(r"\b(encoder|decoder)\.")


def group_stacks(sites: Sequence[AnyLocation], config: Mapping[str, Any]) -> dict[str, list[AnyLocation]]:
    """Return {stack: its layers in order}.

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

    Where several parts of a model have stacks of one kind, a word of their paths tells them apart.
    """
    joint = {site.path.rpartition(".")[0] for site in sites if site.path.endswith(f".{SECOND}")}
    cross = {site.path for site in sites if site.cross}
    first = "video" if re.search("3D|Video", str(config.get("_class_name"))) else "image"
    groups: dict[tuple[str, str], list[AnyLocation]] = {}
    for site in sorted(sites, key=_order):
        part = "unet" if _UNET_PART.search(site.path) else site.template
        groups.setdefault((_kind(site, joint, cross, first), part), []).append(site)
    stacks: dict[str, list[AnyLocation]] = {}
    for kind, part in groups:
        stacks[_name(kind, part, [other for its, other in groups if its == kind], stacks)] = groups[kind, part]
    return stacks


def _order(site: Location) -> tuple[Any, ...]:
    """Return what the layers are sorted by: a UNet runs down, mid, up, and its blocks in order."""
    match = _UNET_PART.search(site.path)
    return (_UNET_ORDER.index(match[1]), site.indices, site.template) if match else (9, site.template, site.indices)


def _kind(site: Location, joint: set[str], cross: set[str], first: str) -> str:
    """Return the name of the stack of `site`, before several stacks of one name are told apart."""
    path, _, last = site.path.rpartition(".")
    if last == SECOND:
        return "text"
    if last == FROM_SECOND:
        return f"text-to-{first}"
    if last == TO_SECOND:
        return f"{first}-to-text" if path in joint else "cross-added" if path in cross else "cross"
    if site.path in joint:
        return first
    if _TEMPORAL.search(site.path):
        return "temporal-cross" if site.cross else "temporal"
    if site.cross:
        return "cross"
    if match := _CODER.search(site.path):
        return match[1]
    if joint and re.search("single", site.path):
        return "single"
    if match := _REFINER.search(site.path):
        return match[0].replace("_", "-")
    return "text" if _TEXT.search(site.path) else "self"


def _name(kind: str, part: str, same: Sequence[str], taken: Mapping[str, Any]) -> str:
    """Return the kind, and from the second part of one kind on also the first word that only this part has."""
    if kind not in taken:
        return kind
    others = {word for other in same if other != part for word in other.split(".")}
    words = [word for word in part.split(".") if word not in others and word != "*"]
    name = f"{kind}-{words[0]}" if words else kind
    return name if name not in taken else f"{name}-{same.index(part)}"
