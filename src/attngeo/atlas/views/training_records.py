"""The revisions of one training run in order of their steps, as the records that a monitor writes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from attngeo.atlas.tables import STATE
from attngeo.errors import InputError

if TYPE_CHECKING:
    import polars as pl

FIGURES = ("symmetry", "directionality")


def training_records(frame: pl.DataFrame, run: str) -> list[dict[str, Any]]:
    """Return one record per checkpoint of a run: step, and the stack, layer, symmetry and directionality of each layer.

    frame: as `Atlas.frame` returns it
    run:   a hub id whose revisions are checkpoints (step1000, …), or a folder that contains them (checkpoint-1000, …)

    The step is the number after "step" in the name of the revision or the folder, or the last number if there is no
    such word; names without a number are left out. InputError where two checkpoints with one step have other scores, as
    two commits of a branch may.
    """
    import polars as pl

    folder = os.path.abspath(os.path.expanduser(run))
    layers = frame.filter(pl.col("head").is_null(), ~pl.col("cross"))
    records: dict[int, dict[str, Any]] = {}
    names: list[str] = []
    name_of: dict[int, str] = {}
    for part in layers.partition_by(*STATE, maintain_order=True):
        model, revision = part.select("model", "revision").row(0)
        if model != run and os.path.dirname(model) != folder:
            continue
        name = os.path.basename(model) if revision is None else revision
        names.append(name)
        step = _step(name)
        if step is not None:
            rows = part.sort("stack", "layer").select("stack", "layer", *FIGURES)
            record = {"step": step} | {column: rows[column].to_list() for column in rows.columns}
            if name_of.setdefault(step, name) != name:
                raise InputError(f"{run}: {name_of[step]} and {name} have the same step, {step}")
            if records.setdefault(step, record) != record:
                raise InputError(f"{run}: the atlas has scores of two states of {name}, expected one per step")
    if not names:
        raise InputError(f"{run}: the atlas has no checkpoints of it")
    if len(records) < 2:
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise InputError(f"{run}: {len(records)} of its checkpoints have a step in their names ({shown}), expected two")
    return [records[step] for step in sorted(records)]


def _step(name: str) -> int | None:
    """Return the step that the name of a checkpoint contains; a commit has none.

    >>> _step("step1000-tokens4B"), _step("checkpoint-500"), _step("main"), _step("0a" * 20)
    (1000, 500, None, None)
    """
    numbers = re.findall(r"step[-_]?(\d+)", name) or re.findall(r"\d+", name)
    return None if not numbers or re.fullmatch(r"[0-9a-f]{40}", name) else int(numbers[-1])
