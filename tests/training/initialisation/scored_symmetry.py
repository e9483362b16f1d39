"""Helpers of the initialisation tests: the symmetry that scoring finds, and whether a model was changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from attngeo.weights.scoring.score import score


def symmetry_scores(ref: Any) -> dict[bool, list[float]]:
    """Return {cross: symmetry of every layer and head}."""
    frame = score(ref, nulls=False, folded=False).frame
    return {
        bool(cross): [s for s, c in zip(frame["symmetry"], frame["cross"], strict=True) if c == cross]
        for cross in set(frame["cross"])
    }


def unchanged_since_now(model: nn.Module) -> Callable[[], bool]:
    """Return a function that tells whether every parameter is still what it is now."""
    before = {name: value.clone() for name, value in model.named_parameters()}
    return lambda: all(value.equal(before[name]) for name, value in model.named_parameters())
