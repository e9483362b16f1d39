"""`track`: score the checkpoints that a run saved, in order of step, into the records that a `Monitor` writes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attngeo.arguments import file_path, whole_number
from attngeo.errors import InputError, SourceError
from attngeo.io.archive import digest
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.io.threads import prefetch, shared_cores
from attngeo.training.monitoring.records import (
    FIGURES,
    RECORDS_FILE,
    STATE,
    LayerFigures,
    Record,
    RecordFile,
    make_record,
    read_records,
)
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import Layers, open_layers
from attngeo.weights.scoring.layer import head_scores, layer_form, layer_scores
from attngeo.weights.sources.folder import SUFFIXES, file_state

# checkpoint-N, step-N and the like
_STEP = re.compile(r"(?:^|.*[-_.])(?:checkpoint|ckpt|global_?step|step|iter(?:ation)?)[-_=]?(\d+)", re.IGNORECASE)
SAME_SCORE = 1e-5  # two scores of one checkpoint differ by less: by rounding in the file and in the products


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint of a run: a folder, or one file of weights."""

    step: int
    path: Path

    def state(self) -> str | None:
        """Return a digest that changes whenever the files may have changed; None if they cannot be listed."""
        state = file_state(self.path)
        return None if state is None else digest(*state)


@accepts_progress_bar
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
    progress: Progress | bool | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Record]:
    """Score the checkpoints in `folder` that are new or have changed, and return all records in order of step.

    folder:   contains checkpoint-N, step-N and the like, as folders or as files of weights
    out:      the JSON Lines file, by default `attngeo.jsonl` in `folder`; a killed run continues there
    every:    only steps that are multiples of this number
    heads, num_heads, stack, layers, unproven: as in `attngeo.score`
    progress: called with (number of checkpoints done, number of all checkpoints); True draws a progress bar
    say:      called with one line about each checkpoint that is left out or scored again

    A checkpoint that cannot be read is left out and the others are scored. An error is raised at the end, unless only
    the newest is unreadable, which may be incomplete because training is still writing it.

    >>> attngeo.track("runs/bert")[-1]["symmetry"]   # doctest: +SKIP
    """
    folder = file_path(folder)
    every = whole_number(every, "every", 1)
    checkpoints = [saved for saved in find_checkpoints(folder) if saved.step % every == 0]
    if not checkpoints:
        raise SourceError(f"{folder}: no checkpoint at a step that is a multiple of {every}")
    opened = partial(_open, num_heads=num_heads, stack=stack, unproven=unproven)
    records = RecordFile(folder / RECORDS_FILE if out is None else file_path(out))
    _check_first_layer(checkpoints, records, opened, layers, heads)
    recorded = {row["step"]: row.get(STATE) for row in records.rows}
    unreadable: list[tuple[SavedCheckpoint, str]] = []
    for done, saved in enumerate(checkpoints):
        if callable(progress):
            progress(done, len(checkpoints))
        state = saved.state()  # before the files are read: a change in the meantime is noticed next time
        if saved.step in recorded and recorded[saved.step] in (None, state):  # None: measured by a Monitor
            continue
        try:
            with opened(saved, layers) as source:
                row = _scored(saved.step, source, heads) | {STATE: state}
        except SourceError as error:
            unreadable.append((saved, str(error)))
            if say is not None:
                say(f"{saved.path.name}: left out, {error}")
            continue
        for other in records.rows[:1]:
            if other["step"] != saved.step:
                _check_same(records, other, saved, row, heads)
        records.add(row)
        if saved.step in recorded and say is not None:
            say(f"{saved.path.name}: scored again, because its files have changed")
    if callable(progress):
        progress(len(checkpoints), len(checkpoints))
    if unreadable and (unreadable[0][0] != checkpoints[-1] or not records.rows):
        more = f" and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        raise SourceError(
            f"{unreadable[0][1]}{more}; {len(records.rows)} of {len(checkpoints)} checkpoints are in {records.path}"
        )
    return records.rows


def find_checkpoints(folder: str | os.PathLike[str]) -> list[SavedCheckpoint]:
    """Return the checkpoints in the folder of a run, in order of step; two of the same step are an error.

    The final `model` of an `attngeo pretrain` run counts too; its step is that of the run's last own record.
    """
    folder = file_path(folder)
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise SourceError(f"{folder}: cannot be listed ({error.strerror or error})") from error
    by_step: dict[int, SavedCheckpoint] = {}
    metrics, model = folder / "metrics.jsonl", folder / "model"
    if model.is_dir() and metrics.is_file() and (rows := read_records(metrics)):
        by_step[rows[-1]["step"]] = SavedCheckpoint(rows[-1]["step"], model)
    for path in entries:
        name = path.name if path.is_dir() else path.stem
        if name.startswith(("tmp", ".")):  # temporary names: the checkpoint is incomplete
            continue
        if not (match := _STEP.fullmatch(name)) or not (path.is_dir() or path.suffix in SUFFIXES):
            continue
        saved = SavedCheckpoint(int(match[1]), path)
        if other := by_step.get(saved.step):
            raise InputError(
                f"{folder}: {other.path.name} and {path.name} are both of step {saved.step}, expected one checkpoint"
            )
        by_step[saved.step] = saved
    if not by_step:
        raise SourceError(f"{folder}: no checkpoints; expected folders or files such as checkpoint-500 or step-500")
    return [by_step[step] for step in sorted(by_step)]


def _open(saved: SavedCheckpoint, layers: int | Collection[int] | None, **options: Any) -> Layers:
    """Open a checkpoint; if it has no config of its own, the one in the folder of the run is used."""
    of_run, own = saved.path.parent / "config.json", saved.path / "config.json"
    config = of_run if of_run.is_file() and not own.is_file() else None
    return open_layers(saved.path, config=config, layers=layers, **options)


def _scored(step: int, source: Layers, heads: bool) -> Record:
    """Return the record of an open checkpoint, with the figures of heads if `heads` and where they are known."""
    with shared_cores(), closing(prefetch(source, stop=source.stop)) as upcoming:
        return make_record(step, [_figures(layer, heads and layer.heads_known) for layer in upcoming])


def _figures(layer: Layer, heads: bool) -> LayerFigures:
    parts = [layer_scores(*layer_form(layer), layer.rotary, groups=layer.groups)]
    parts += [head_scores(layer, layer.rotary)] if heads else []
    figures = np.concatenate([np.stack([getattr(part, name) for name in FIGURES], -1) for part in parts])  # [1 + H, 8]
    if layer.cross:  # queries and keys are different tokens, so that none attends to itself
        figures[:, FIGURES.index("self_attending")] = np.nan
    whole, *each = figures.tolist()
    return LayerFigures(layer.stack, layer.layer, whole, each, numbers=layer.numbers)


def _check_first_layer(
    checkpoints: list[SavedCheckpoint],
    records: RecordFile,
    opened: Callable[..., Layers],
    layers: int | Collection[int] | None,
    heads: bool,
) -> None:
    """Raise unless existing records are of this run and of the layers and heads that are selected.

    The first layer of one recorded checkpoint is scored again and compared.
    """
    rows = {row["step"]: row for row in records.rows}
    known = [saved for saved in checkpoints if saved.step in rows]
    # The newest whose files are as they were; one that was written again says nothing about the others.
    for saved in sorted(known, key=lambda one: (rows[one.step].get(STATE) == one.state(), one.step), reverse=True):
        try:
            with opened(saved, layers) as source:
                first = next(iter(source))
                again = make_record(saved.step, [_figures(first, heads and first.heads_known)])
                again |= {name: [getattr(layer, name) for layer in source.unread] for name in ("stack", "layer")}
        except SourceError:
            continue  # deleted or damaged since it was recorded; another checkpoint may be comparable
        return _check_same(records, rows[saved.step], saved, again, heads)


def _check_same(records: RecordFile, old: Record, saved: SavedCheckpoint, new: Record, heads: bool) -> None:
    """Raise unless a record of the file and one of `saved` have the same layers, heads and, at one step, scores."""
    recorded, wanted = _head_count(old), _head_count(new)
    if (old.get("stack"), old.get("layer")) != (new["stack"], new["layer"]):
        problem = f"{_layers_text(old)} where {_layers_text(new)} of {saved.path.name} are selected"
    elif heads and recorded != wanted:
        problem = f"{recorded} heads in its first layer where {saved.path.name} has {wanted} (see --no-heads, heads=)"
    elif old["step"] == new["step"] and not _close(old["symmetry"][0], new["symmetry"][0]):
        problem = f"a symmetry of {old['symmetry'][0]} where {saved.path.name} has {new['symmetry'][0]}"
    else:
        return
    raise InputError(f"{records.path}: holds another run, or other layers or heads, at step {old['step']}: "
                     f"{problem}; choose another file with --out (out=)")  # fmt: skip


def _head_count(row: Record) -> int:
    """Return the number of heads of the first layer of a record; 0 where it holds none."""
    return len(row["head_symmetry"][0]) if "head_symmetry" in row else 0


def _layers_text(row: Record) -> str:
    """Return the layers of a record in words, such as "encoder layers 0, 1"."""
    by_stack: dict[str, list[str]] = {}
    for stack, layer in zip(row.get("stack", ()), row.get("layer", ()), strict=False):
        by_stack.setdefault(stack, []).append(str(layer))
    return "; ".join(f"{stack} layers {', '.join(numbers)}" for stack, numbers in by_stack.items()) or "no layers"


def _close(a: float | None, b: float | None) -> bool:
    return a is b if a is None or b is None else abs(a - b) <= SAME_SCORE
