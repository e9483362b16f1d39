"""Views of the scores of an atlas: points to draw, the records of a training run, published scores beside ours.

model_points, published_points   medians per model and stack, for a plane of two columns
training_records                 the revisions of one run in order of step
beside_published                 scores and published scores of the same models
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from attngeo.atlas.frames import STATE
from attngeo.errors import InputError
from attngeo.weights.scoring.published import compare_with_published, find_published, list_published

if TYPE_CHECKING:
    import polars as pl

FIGURES = ("symmetry", "directionality")  # columns that were published, and that a run is drawn by


def model_points(frame: pl.DataFrame, x: str, y: str) -> pl.DataFrame:
    """Return the medians of columns x and y over the self-attention layers of each model and stack.

    frame: as `Atlas.frame` returns it

    Columns: model, revision, commit, options, stack, group (encoders, decoders or other stacks), layers, x, y.
    """
    import polars as pl

    numbers = [name for name, kind in frame.schema.items() if kind.is_numeric() and name not in ("layer", "head")]
    for column in (x, y):
        if column not in numbers:
            raise InputError(f"{column}: not a column of scores, expected one of {', '.join(numbers)}")
    medians = (
        _layers(frame)
        .drop_nulls([x, y])
        .group_by(*STATE, "stack", maintain_order=True)
        .agg(pl.len().alias("layers"), pl.col(x).median().alias("x"), pl.col(y).median().alias("y"))
    )
    return medians.with_columns(_group().alias("group"))


def published_points(x: str, y: str) -> pl.DataFrame:
    """Return the published medians in the same form, without rows that have a caution; none if a column is lacking."""
    import polars as pl

    if not {x, y} <= set(FIGURES):
        return pl.DataFrame(schema={"group": pl.String, "x": pl.Float64, "y": pl.Float64})
    return list_published(caution=False).select(_group().alias("group"), pl.col(x).alias("x"), pl.col(y).alias("y"))


def _layers(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of self-attention layers, without those of heads."""
    import polars as pl

    return frame.filter(pl.col("head").is_null(), ~pl.col("cross"))


def _group() -> pl.Expr:
    """Return the group of a stack: decoders, encoders, or other stacks, such as vision and text."""
    import polars as pl

    stack = pl.col("stack")
    decoder = pl.when(stack.str.contains("decoder")).then(pl.lit("decoders"))
    return decoder.when(stack.str.contains("encoder")).then(pl.lit("encoders")).otherwise(pl.lit("other stacks"))


def beside_published(frame: pl.DataFrame, *, layers: bool = False) -> pl.DataFrame:
    """Return the scores of the models of an atlas that were published, beside the published ones.

    frame:  as `Atlas.frame` returns it
    layers: one row per layer instead of the medians per model and stack

    Columns: model, revision, commit, options, stack, layer or layers, then symmetry and directionality, each with
    `_published` and `_difference` (ours minus published), and caution, where a published value is known to be wrong.
    """
    import polars as pl

    own = _layers(frame).filter(pl.col("revision").is_not_null())
    both = [name for score in FIGURES for name in (score, f"{score}_published")]
    missing = [pl.lit(None, pl.Float64).alias(f"{score}_published") for score in FIGURES]
    parts = [own.clear().with_columns(*missing, pl.lit(None, pl.String).alias("caution"))]
    for part in own.partition_by(*STATE, maintain_order=True):
        if (name := find_published(part["model"][0])) is not None:  # also by an old name, such as gpt2
            parts.append(compare_with_published(part, name))
    rows = pl.concat([part.select(*STATE, "stack", "layer", *both, "caution") for part in parts])
    rows = rows.filter(pl.col("symmetry_published").is_not_null())
    if not layers:
        rows = rows.group_by(*STATE, "stack", maintain_order=True).agg(
            pl.len().alias("layers"), pl.col(*both).median(), pl.col("caution").first()
        )
    for score in FIGURES:
        rows = rows.with_columns((pl.col(score) - pl.col(f"{score}_published")).alias(f"{score}_difference"))
    return rows.select(pl.exclude("caution"), "caution")


def training_records(frame: pl.DataFrame, run: str) -> list[dict[str, Any]]:
    """Return one record per checkpoint of a run: step, and the stack, layer, symmetry and directionality of each layer.

    frame: as `Atlas.frame` returns it
    run:   a hub id whose revisions are checkpoints (step1000, …), or a folder that contains them (checkpoint-1000, …)

    The step is the number after "step" in the name of the revision or the folder, or the last number if there is no
    such word; names without a number are left out. InputError where two checkpoints with one step have other scores, as
    two commits of a branch may.
    """
    folder = os.path.abspath(os.path.expanduser(run))
    records: dict[int, dict[str, Any]] = {}
    names: list[str] = []
    name_of: dict[int, str] = {}
    for part in _layers(frame).partition_by(*STATE, maintain_order=True):
        model, revision = part.select("model", "revision").row(0)
        if model != run and os.path.dirname(model) != folder:
            continue
        name = os.path.basename(model) if revision is None else revision
        names.append(name)
        if (step := _step(name)) is None:
            continue
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
