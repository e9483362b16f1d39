"""`Verdict`: the result of comparing one model type with a live model, and how such results are stored."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from attngeo.io.files import write_file
from attngeo.weights.layout.facts import families, family


@dataclass
class Verdict:
    """The result for one model type; its fields are those of docs/coverage.json."""

    model_type: str
    status: str  # right | refused | unproven | none | unbuilt
    reason: str = ""
    layers: int = 0
    stacks: dict[str, int] = field(default_factory=dict)  # name → number of layers
    qk_norm: bool = False
    unplaced: int = 0  # products through AttentionInterface that no extracted layer reproduces
    causal: bool | None = None
    width: bool = False  # every layer is as wide as its config declares
    offset: bool = False  # QK-norms multiply by 1 + weight
    centred: bool = False  # QK-norms subtract the mean
    gainless: bool = False  # QK-norms subtract the mean and have no gain
    gated: bool = False  # query projections hold the gates of the heads' outputs, too
    window_keys: int = 0  # how many times the declared key heads layers with a window have; 0: as declared
    storage: dict[str, str] = field(default_factory=dict)  # leaf of a tensor → storage, as in `table.STORAGES`
    norms: list[dict[str, Any]] = field(default_factory=list)  # rules of `attngeo.weights.layout.find`
    skip: list[str] = field(default_factory=list)  # templates that no product confirmed
    unknown: list[str] = field(default_factory=list)  # templates of query projections in an unknown layout
    cross: list[str] | None = None  # diffusers: templates of cross-attention
    rotary: list[dict[str, Any]] = field(default_factory=list)  # rules of `attngeo.weights.layout.rope`
    rotary_unproved: dict[str, str] = field(default_factory=dict)  # template → why its rotation is not proved
    rotary_worst: float = 0.0  # largest relative error at non-zero positions
    worst: float = 0.0  # largest relative error
    sites: dict[str, str] = field(default_factory=dict)  # template → right | mismatch | not run | why it was left out
    note: str = ""  # for the coverage page


def assume(model_type: str, **facts: Any) -> None:
    """Make attngeo use these facts about a model type in this process, while the type is examined."""
    known = cast(dict[str, Any], families())
    known[model_type] = {**known.get(model_type, {}), **facts}
    family.cache_clear()


def write_lines(path: Path, entries: dict[str, str]) -> None:
    """Write a JSON object with one entry per line."""
    lines = [f"{json.dumps(key)}: {value}" for key, value in entries.items()]
    write_file(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
