"""What is known of the part of a model around a tensor: the facts about its model type, and its part of the config.

The facts were found by comparison with live models (`tools/prove_all.py`, `tools/prove_prune.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Family:
    """Facts about one model type, or one part of a model."""

    status: str = "unknown"  # right | refused | unproven | none (no self-attention) | unbuilt | unknown
    reason: str = ""  # why the status is not "right"
    causal: bool | None = None  # whether its attention is causal, for models with one stack; None: not known
    qk_norm: bool = False  # queries and keys are normalised before their product
    width: bool = False  # every layer is as wide as its config's hidden size
    offset: bool = False  # its QK-norms multiply by 1 + weight
    centred: bool = False  # its QK-norms are LayerNorms, which subtract the mean
    gainless: bool = False  # they are LayerNorms without a gain, so no tensor shows them
    gated: bool = False  # its query projections may hold the gates of the heads' outputs, too
    window_keys: int = 1  # its layers with a window have this many times the key heads that the config declares
    storage: Mapping[str, str] = field(default_factory=dict)  # leaf of a tensor → storage, where the type decides it
    norms: tuple[Mapping[str, Any], ...] = ()  # rules that lead from an attention to the norm before it
    rotary: tuple[Mapping[str, Any], ...] = ()  # rules about rotary embedding, see `rope`; none: not proved
    fixed_positions: bool = False  # in some stack, sinusoids tell the hidden dimensions apart before training
    prune: Mapping[str, Any] | None = None  # how heads are removed, see `applications.prune.removal`; None: not proved
    skip: tuple[str, ...] = ()  # templates of layers that no live product confirmed; scored only with unproven=True
    cross: tuple[str, ...] | None = None  # diffusers: templates of cross-attention; None: not known
    heads: tuple[Mapping[str, Any], ...] = ()  # diffusers: where configs declare heads, see `diffusers.declared_heads`
    defaults: Mapping[str, Any] = field(default_factory=dict)  # values that a config of this type may leave out

    def skips(self, template: str) -> bool:
        """Return whether no live product confirmed the layers with this template."""
        return any(ends_with(template, skip) for skip in self.skip)


@cache
def families() -> Mapping[str, Mapping[str, Any]]:
    """Return the facts about all model types, as stored in data/families.json and data/diffusers.json."""
    facts: dict[str, Mapping[str, Any]] = {}
    for name in ("families.json", "diffusers.json"):
        facts |= json.loads(resources.files("attngeo.weights").joinpath(f"data/{name}").read_text("utf-8"))
    return facts


@cache
def family(model_type: str) -> Family:
    """Return the facts about `model_type`; an empty Family for a type that was never examined."""
    facts = families().get(model_type)
    if facts is None:
        return Family()
    return Family(**{**facts, **{key: tuple(value) for key, value in facts.items() if isinstance(value, list)}})


def ends_with(template: str, ending: str) -> bool:
    """Return whether a path ends with the words of `ending`; wrappers put words of their own before a model's path.

    >>> ends_with("bert.encoder.layer.*.attention", "layer.*.attention"), ends_with("my_layer", "layer")
    (True, False)
    """
    return ("." + template).endswith("." + ending)


# Words in tensor names that stand for a sub-config, where they differ from the sub-config's own name.
_SYNONYMS = {
    "vision": r"vision|visual|image|vit\b|img",
    "text": r"text|language|\blm\b|llm",
    "audio": r"audio|speech",
    "image": r"image|visual",
    "backbone": r"backbone|pixel_level_module\.encoder|\bconv_encoder",
    "speech": r"speech|conditioning_encoder",
    "projector": r"projector|qformer",
    "codec": r"codec",
}
# Config keys, the most common first; per role of a stack in an encoder-decoder model where the two differ.
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads", "num_self_attention_heads")
_ROLES = {
    "encoder": ("encoder_attention_heads", "encoder_num_attention_heads", "num_encoder_attention_heads"),
    "decoder": (
        "decoder_attention_heads",
        "decoder_num_attention_heads",
        "num_decoder_attention_heads",
        "decoder_self_attention_heads",
    ),
    "cross": ("cross_num_attention_heads", "decoder_cross_attention_heads", "num_cross_attention_heads"),
}
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "num_query_groups")
_SIZES = ("head_dim", "d_kv", "d_head", "attention_head_size", "kv_channels", "dim_head", "attention_head_dim")
_WIDTHS = ("hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim", "dim", "emb_dim")
DECLARED = (*_HEADS, *(key for keys in _ROLES.values() for key in keys), *_KEY_HEADS, *_SIZES)


@dataclass(frozen=True)
class Scope:
    """One part of a model: its config or sub-config, the defaults for what that leaves out, facts about its type."""

    name: str | None  # "vision", "text", "qformer", …; None: the whole config
    config: Mapping[str, Any]
    defaults: Mapping[str, Any]
    facts: Family = field(default_factory=Family)  # about the model type
    other_type: str | None = None  # its model type, where the whole model was examined with a part of another type

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, else the model type's default, else `default`; null counts as left out."""
        value = self.config.get(key)
        if value is None:
            value = self.defaults.get(key)
        return default if value is None else value

    def switched(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return those of `keys` that the model type reads and that have other values than its defaults."""
        values = {key: self.config.get(key) for key in keys if key in self.defaults}
        return {key: value for key, value in values.items() if value is not None and value != self.defaults[key]}


def scope_of(config: Mapping[str, Any], path: str) -> Scope:
    """Return the innermost sub-config whose name occurs in `path`; the whole config where none does.

    >>> scope_of({"vision_config": {"num_attention_heads": 2}, "text_config": {}}, "visual.blocks.0.attn").name
    'vision'
    >>> scope_of({"text_encoder_config": {}, "text_config": {}}, "text_encoder.layers.0").name
    'text_encoder'
    """
    known = family(str(config.get("model_type", "")))
    scope = Scope(None, config, known.defaults, known)
    words = path.split(".")
    numbers = [i for i, word in enumerate(words) if word.isdecimal()]
    path = ".".join(words[: numbers[0]] if numbers else words)  # words after a number name parts of a layer
    while (inner := _best_match(scope, path)) is not None:
        scope = inner
    return scope


def _best_match(scope: Scope, path: str) -> Scope | None:
    """Return the sub-config of `scope` that fits `path` best: by its own name, then by a synonym; None: none fits."""
    inner_configs = {**sub_configs(scope.defaults), **sub_configs(scope.config)}
    ranked = []
    for key in inner_configs:
        name = key.removesuffix("_config")
        if re.search(rf"(^|\.){re.escape(name)}", path):
            ranked.append((2, len(name), key))
        elif re.search(_SYNONYMS.get(name, r"(?!)"), path, re.IGNORECASE):
            ranked.append((1, len(name), key))
    if not ranked and not any(True for _ in _declared(scope, _HEADS)):
        # The config declares no heads itself: layers whose path names none of its parts belong to the language model.
        language = ("text_config", "llm_config", "thinker_config", "language_config")
        ranked = [(0, 0, key) for key in language if key in inner_configs]
    if not ranked:
        return None
    key = max(ranked)[2]
    inner = scope.config.get(key)
    inner = inner if isinstance(inner, Mapping) else {}
    examined = scope.defaults.get(key) or {}
    own, usual = inner.get("model_type"), examined.get("model_type")
    of_type = family(str(own or ""))
    facts, other_type = scope.facts, scope.other_type
    if own and usual and own != usual:  # a LLaVA with the language model of a Gemma
        other_type = str(own)
        # Of a type that is not proved nothing but its status is known.
        facts = of_type if of_type.status == "right" else Family(of_type.status, of_type.reason)
    return Scope(key.removesuffix("_config"), inner, of_type.defaults or examined, facts, other_type)


def sub_configs(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the mappings called `…_config`, and any that has a model type of its own (`encoder`, `text_encoder`)."""
    return {
        key: value
        for key, value in config.items()
        if isinstance(key, str)
        and isinstance(value, Mapping)
        and key != "quantization_config"
        and (key.endswith("_config") or "model_type" in value)
    }


def _declared(scope: Scope, keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield those of `keys` that have a value, with their values."""
    for key in keys:
        value = scope.get(key)
        if value is not None:
            yield key, value


def query_heads(scope: Scope, path: str, cross: bool) -> tuple[str, Any] | None:
    """Return the config key that counts the query heads of `path`, and its value: one count, or one per layer."""
    keys: tuple[str, ...] = ()
    if cross:
        keys += _ROLES["cross"]
    for role in ("decoder", "encoder"):
        if role in path.lower():
            keys += _ROLES[role]
            break
    declared = next(_declared(scope, keys + _HEADS), None)
    return declared or next(_declared(scope, _ROLES["encoder"] + _ROLES["decoder"]), None)


def key_heads(scope: Scope) -> tuple[str, Any] | None:
    """Return the config key that counts the key heads, and its value."""
    return next(_declared(scope, _KEY_HEADS), None)


def other_key_heads(scope: Scope) -> set[int]:
    """Return key head counts under other names, for layers of another kind (sliding windows, global layers)."""
    return {value for key, value in scope.config.items() if "key_value" in key and isinstance(value, int)}


def head_sizes(scope: Scope) -> set[int]:
    """Return every head size that the config itself declares, for attention of any kind; empty if it declares none."""
    named = {key for key in scope.config if "head_dim" in key and not key.startswith("linear_")} | set(_SIZES)
    return {value for key in named if isinstance(value := scope.config.get(key), int)}


def width(scope: Scope) -> tuple[str, int] | None:
    """Return the config key that gives the width of the token vectors, and its value."""
    declared = ((key, scope.config.get(key)) for key in _WIDTHS)
    return next(((key, value) for key, value in declared if isinstance(value, int)), None)
