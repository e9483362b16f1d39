"""`track`: the checkpoints a run left in a folder, scored in order of step into the records a `Monitor` writes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attngeo.dynamics.monitoring.records import FILE, LayerFigures, Record, Records, read_records, record
from attngeo.errors import InputError, SourceError
from attngeo.io.prefetch import prefetch
from attngeo.io.threads import shared_cores
from attngeo.weights.layout.layers import Layers, open_layers
from attngeo.weights.scoring.factored import Scores, variation
from attngeo.weights.scoring.layer import head_scores, layer_scores, sides
from attngeo.weights.sources.discover import SUFFIXES
from attngeo.weights.sources.open import open_checkpoint

SAME = 1e-5  # two scores of one checkpoint: roundings of the file and of other ways to multiply
_STEP = re.compile(r"(?:^|.*[-_.])(?:checkpoint|ckpt|global_?step|step|iter(?:ation)?)[-_=]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Saved:
    """A checkpoint of a run: a folder, or one file of weights."""

    step: int
    path: Path


def track(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    every: int = 1,
    heads: bool = True,
    num_heads: int | None = None,
    stack: str | Collection[str] | None = None,
    layers: int | Collection[int] | None = None,
    unproven: bool = False,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Record]:
    """Score the checkpoints in `folder` that are not recorded yet; all records, in order of step.

    folder  holds checkpoint-N, step-N, … : folders, or files of weights
    out     the JSONL file, by default `attngeo.jsonl` in `folder`; killed and started again it goes on there
    every   only steps that are multiples of this
    heads, num_heads, stack, layers, unproven  as in `attngeo.score`
    say     called with a line about each checkpoint that is left out

    What cannot be read is left out and the rest scored; an error is raised at the end, unless it is only the newest,
    which may be half-written.

    >>> attngeo.track("runs/bert")[-1]["symmetry"]   # doctest: +SKIP
    """
    folder = Path(folder)
    if every < 1:
        raise InputError(f"every is {every}, a positive whole number expected")
    found = [saved for saved in checkpoints(folder) if saved.step % every == 0]
    if not found:
        raise SourceError(f"{folder}: no checkpoint at a step that is a multiple of {every}")
    options: dict[str, Any] = {"num_heads": num_heads, "stack": stack, "layers": layers, "unproven": unproven}
    records = Records(folder / FILE if out is None else Path(out))
    check_same_run(found, records, options)
    known = {row["step"] for row in records.rows}
    broken: list[tuple[Saved, str]] = []
    for done, saved in enumerate(found):
        if progress is not None:
            progress(done, len(found))
        if saved.step in known:
            continue
        try:
            row = record(saved.step, figures(saved, heads, options))
        except SourceError as error:
            broken.append((saved, str(error)))
            if say is not None:
                say(f"{saved.path.name}: left out, {error}")
            continue
        check_same_shape(saved, row, records)
        records.add(row)
    if progress is not None:
        progress(len(found), len(found))
    if broken and (broken[0][0] != found[-1] or not records.rows):
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise SourceError(
            f"{broken[0][1]}{more}; {len(records.rows)} of {len(found)} checkpoints are in {records.path}"
        )
    return records.rows


def checkpoints(folder: Path) -> list[Saved]:
    """What a run saved, in order of step; two of one step are an error.

    Of `attngeo pretrain` that is its final `model`, of the step its own records end with.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise SourceError(f"{folder}: cannot be listed ({error.strerror or error})") from error
    found: dict[int, Saved] = {}
    own, final = folder / "metrics.jsonl", folder / "model"
    if final.is_dir() and own.is_file() and (rows := read_records(own)):
        found[rows[-1]["step"]] = Saved(rows[-1]["step"], final)
    for path in entries:
        name = path.name if path.is_dir() else path.stem
        if name.startswith(("tmp", ".")):  # on its way to its own name, or left behind there
            continue
        if not (match := _STEP.fullmatch(name)) or not (path.is_dir() or path.suffix in SUFFIXES):
            continue
        saved = Saved(int(match[1]), path)
        if other := found.get(saved.step):
            raise InputError(f"{folder}: {other.path.name} and {path.name} are both of step {saved.step}, one expected")
        found[saved.step] = saved
    if not found:
        raise SourceError(f"{folder}: no checkpoints; folders or files such as checkpoint-500 or step-500 expected")
    return [found[step] for step in sorted(found)]


def opened(saved: Saved, options: dict[str, Any]) -> Layers:
    """A checkpoint about to be read; a config that is only in the folder of the run is taken from there."""
    beside = saved.path.parent / "config.json"
    own = saved.path / "config.json"
    config = beside if beside.is_file() and not own.is_file() else None
    return open_layers(open_checkpoint(saved.path, config=config), **options)


def figures(saved: Saved, heads: bool, options: dict[str, Any]) -> list[LayerFigures]:
    """Every layer of one checkpoint."""
    rows = []
    with (
        opened(saved, options) as source,
        shared_cores(),
        closing(prefetch(source)) as coming,
    ):  # the reader ends before its source
        for weights in coming:
            factors = sides(weights)
            each = head_scores(*factors.heads) if heads and weights.heads_known else []
            whole = layer_scores(factors.layer_query, factors.layer_key)
            rows.append(LayerFigures(weights.stack, weights.layer, _row(whole), [_row(head) for head in each]))
    return rows


def check_same_run(found: list[Saved], records: Records, options: dict[str, Any]) -> None:
    """Records there already must be this run's, and of the layers asked for.

    The first layer of a checkpoint they hold is scored again.
    """
    known = {row["step"]: row for row in records.rows}
    again = [saved for saved in found if saved.step in known]
    for saved in reversed(again):
        was = known[saved.step]
        try:
            with opened(saved, options) as source:
                asked = [(plan.stack, plan.layer) for plan in source.plans]
            now = record(saved.step, figures(saved, False, options | {"layers": was["layer"][:1]}))
        except (SourceError, KeyError, IndexError):
            continue  # gone or broken since: another may tell
        here = [(stack, value) for stack, value in zip(now["stack"], now["symmetry"], strict=True)]
        there = (was["stack"][0], was["symmetry"][0])
        if not any(stack == there[0] and _close(value, there[1]) for stack, value in here):
            raise InputError(
                f"{records.path}: holds another run, at step {saved.step} a symmetry of {there[1]} where "
                f"{saved.path.name} has {here[0][1]}; --out (out=) names another file"
            )
        if asked != list(zip(was["stack"], was["layer"], strict=True)):
            raise InputError(
                f"{records.path}: holds {len(was['layer'])} layers from {was['stack'][0]} layer {was['layer'][0]} on, "
                f"{len(asked)} from {asked[0][0]} layer {asked[0][1]} on were asked for; "
                "--out (out=) names another file"
            )
        return


def check_same_shape(saved: Saved, row: Record, records: Records) -> None:
    """All records of one file have the same layers."""
    if records.rows and any(records.rows[0].get(name) != row[name] for name in ("stack", "layer")):
        raise InputError(
            f"{records.path}: holds another run, {len(records.rows[0].get('layer', []))} layers where "
            f"{saved.path.name} has {len(row['layer'])}; --out (out=) names another file"
        )


def _close(a: float | None, b: float | None) -> bool:
    return a is b if a is None or b is None else abs(a - b) <= SAME


def _row(scores: Scores) -> tuple[float, ...]:
    """In the order of FIGURES."""
    spreads = variation(scores.rows), variation(scores.columns)
    return (scores.symmetry, scores.directionality, scores.norm, *spreads)
