"""Facts about each transformers model type, found by comparison with live models (`tools/prove_all.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Family:
    """Facts about one model type."""

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
