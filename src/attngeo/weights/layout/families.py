"""What is known of each transformers model type: written by the proof against live models, read here."""

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
    reason: str = ""
    causal: bool | None = None  # attention of its one tower
    qk_norm: bool = False  # queries and keys are normalised, found live
    width: bool = False  # every tower is as wide as its config's hidden size
    offset: bool = False  # its norms multiply by 1 + weight
    norms: tuple[Mapping[str, Any], ...] = ()  # where the norm before each attention lies
    skip: tuple[str, ...] = ()  # templates no live product confirmed: left out unless unproven layouts are asked for
    defaults: Mapping[str, Any] = field(default_factory=dict)  # head counts a config may leave out


@cache
def families() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files("attngeo.weights").joinpath("data/families.json").read_text("utf-8")
    found: dict[str, Mapping[str, Any]] = json.loads(text)
    return found


@cache
def family(model_type: str) -> Family:
    """Facts about `model_type`; an empty Family for one that was never seen."""
    facts = families().get(model_type)
    if facts is None:
        return Family()
    return Family(**{**facts, **{key: tuple(facts.get(key, ())) for key in ("norms", "skip")}})


def ends_with(template: str, ending: str) -> bool:
    """Does a tensor path end like a known one? Heads and wrappers put their own words before a model's path."""
    return ("." + template).endswith("." + ending)
