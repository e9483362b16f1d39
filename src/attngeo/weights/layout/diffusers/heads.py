"""The head counts that configs of diffusers models declare.

Most transformers of diffusers have one count, `num_attention_heads`. UNets have one value per block, and it may count
heads or give the size of a head; their `attention_head_dim` counts heads in some classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from attngeo.arguments import is_whole
from attngeo.errors import LayoutError
from attngeo.weights.layout.config_scope import Scope
from attngeo.weights.layout.diffusers.blocks import of_block
from attngeo.weights.layout.site import Site
from attngeo.weights.layout.storage.base import DeclaredHeads, Shapes
from attngeo.weights.sources.diffusers_format import PREFIX


@dataclass(frozen=True)
class _Rule:
    """Where the config of a class declares the heads of some of its layers."""

    classes: str  # pattern of class names
    paths: str  # pattern of layer paths
    counts: tuple[str, ...] = ()  # keys that count heads; the first that is set is the one
    size: str = ""  # the key that gives the size of a head, a list of its parts included; null: one head
    fixed: int = 0  # a number of heads that no key declares


_UNET = r"UNet2DCondition|^ControlNet|SparseControlNet|UNetMotion|UNetSpatioTemporal|MotionAdapter|UNetControlNetXS"
_RULES = (
    _Rule(r"UNet3DCondition|I2VGenXL", r"^transformer_in\b", fixed=8),
    _Rule(r"I2VGenXL", r"^image_latents_temporal_encoder\b", fixed=2),
    _Rule(r"UNet3DCondition|I2VGenXL", r"", size="attention_head_dim"),
    _Rule(r"UNetControlNetXS", r"\bctrl_", counts=("ctrl_num_attention_heads",)),
    _Rule(_UNET, r"\bmotion_modules\b", counts=("motion_num_attention_heads",)),
    _Rule(_UNET, r"transformer_blocks\b", counts=("num_attention_heads", "attention_head_dim")),
    _Rule(r"StableCascadeUNet", r"", counts=("num_attention_heads",)),
    _Rule(r"UVit2D", r"\battention_blocks\b", counts=("block_num_heads",)),
    _Rule(r"Kandinsky[56]", r"", size="axes_dims"),
    _Rule(r"Kandinsky3UNet", r"", size="attention_head_dim"),
    _Rule(r"^UNet2D|UNet2DCondition|^ControlNet", r"\battentions\b", size="attention_head_dim"),
    _Rule(r"Autoencoder|VQModel|ConsistencyDecoder", r"\bmid_block\b|\battentions\b", fixed=1),
)


def declared_heads(site: Site, shapes: Shapes) -> DeclaredHeads | None:
    """Return what the config declares about the heads of `site`; None: as in a transformers config."""
    assert site.scope is not None
    name = name_of(site.scope)
    for rule in _RULES:
        if re.search(rule.classes, name) and re.search(rule.paths, site.path):
            key, count = _apply(rule, site, site.scope, shapes)
            # Without the scope: these configs may call a head count `attention_head_dim`.
            return DeclaredHeads(key, count, None, site.cross)
    return None


def _apply(rule: _Rule, site: Site, scope: Scope, shapes: Shapes) -> tuple[str, int]:
    """Return the config key that gives the head count, and the count."""
    if rule.fixed:
        return name_of(scope), rule.fixed
    if not rule.size:
        key = next((key for key in rule.counts if _stated(scope, key) is not None), rule.counts[0])
        return key, _whole(key, of_block(_stated(scope, key), site.path))
    rows, _ = site.storage.matrix_shape(site.query, shapes)
    value = _stated(scope, rule.size)
    parts = rule.size.startswith("axes") and isinstance(value, (list, tuple))
    size = sum(_whole(rule.size, part) for part in value) if parts else of_block(value, site.path, mirrored=False)
    if size is None:
        return rule.size, 1
    size = _whole(rule.size, size)
    if rows % size:
        raise LayoutError(f"{site.query}: {rows} rows do not divide into heads of size {size} ({rule.size})")
    return rule.size, rows // size


def name_of(scope: Scope) -> str:
    """Return the class of the model."""
    return str(scope.get("model_type", "")).removeprefix(PREFIX)


def _stated(scope: Scope, key: str) -> Any:
    """Return the value of `key`, or the default of the class where the config leaves it out; null is a value."""
    return scope.config[key] if key in scope.config else scope.defaults.get(key)


def _whole(key: str, value: Any) -> int:
    if not is_whole(value, lowest=1):
        raise LayoutError(f"config.json: {key} is {value!r}, expected a positive whole number")
    return value
