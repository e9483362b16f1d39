"""What is known of each model type, GGUF architecture and class of diffusers, as a table: `attngeo coverage`."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from attngeo.errors import InputError
from attngeo.weights.layout.facts import families, family
from attngeo.weights.sources.checkpoint import PREFIX

if TYPE_CHECKING:
    import polars as pl

COLUMNS = ("type", "status", "reason", "stacks", "rotation", "capture", "prune")


def coverage(model_type: str | None = None) -> pl.DataFrame:
    """Return one row for each type, or for one of them, with the columns COLUMNS; null where something is not known.

    model_type: a `model_type` of transformers, "gguf:" and an architecture, or the name of a class of diffusers

    >>> coverage("bert").row(0)
    ('bert', 'right', None, 'encoder', 'none', 'captured', 'yes')
    """
    import polars as pl

    kinds = list(_record()) if model_type is None else [_known(model_type)]
    return pl.DataFrame([_row(kind) for kind in kinds], schema=dict.fromkeys(COLUMNS, pl.String), orient="row")


@cache
def _record() -> dict[str, tuple[str | None, str | None, str | None]]:
    """Return stacks, rotation and capture of every type, which `tools/proof/shipped.py` wrote."""
    return dict(json.loads(resources.files("attngeo.weights").joinpath("data/coverage.json").read_text("utf-8")))


def _known(name: str) -> str:
    """Return the type that `name` names; InputError with the nearest name where there is none."""
    from difflib import get_close_matches

    known = {**families(), **_record()}
    for kind in (name, PREFIX + name):
        if kind in known:
            return kind
    names = {kind.removeprefix(PREFIX).lower(): kind.removeprefix(PREFIX) for kind in known}
    near = get_close_matches(name.lower(), names, 1, cutoff=0)
    raise InputError(f"{name}: no model type that was examined, the nearest is {names[near[0]]}")


def _row(kind: str) -> tuple[str | None, ...]:
    facts = family(kind)
    status = "not examined" if facts.status == "unknown" else facts.status
    # A GGUF file is pruned as the model type of its architecture; `removal.check_prunable` reads the same facts.
    removal = family(kind.removeprefix("gguf:")).prune
    prune = "no" if removal is None else "yes, --uniform too" if removal.get("uniform") else "yes"
    return kind, status, facts.reason or None, *_record().get(kind, (None, None, None)), prune
