"""`track`: score the checkpoints that a run saved, in order of step, into the records that a `Monitor` writes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from attngeo.arguments import file_path, whole_number
from attngeo.errors import InputError, SourceError
from attngeo.io.names import joined_names
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.training.monitoring.checkpoint_figures import checkpoint_figures
from attngeo.training.monitoring.records import RECORDS_FILE, STATE, Record, RecordFile, make_record
from attngeo.training.monitoring.saved_checkpoints import SavedCheckpoint, find_checkpoints
from attngeo.weights.layout.layers import Layers, open_layers

SAME_SCORE = 1e-5  # two scores of one checkpoint differ by less: by rounding in the file and in the products


@dataclass(frozen=True)
class Selection:
    """Which layers and heads of each checkpoint are scored; the fields are those of `attngeo.score`."""

    num_heads: int | None
    stack: str | Collection[str] | None
    layers: int | Collection[int] | None
    unproven: bool

    def open(self, saved: SavedCheckpoint, layers: int | Collection[int] | None = None) -> Layers:
        """Open a checkpoint; if it has no config of its own, the one in the folder of the run is used."""
        of_run, own = saved.path.parent / "config.json", saved.path / "config.json"
        config = of_run if of_run.is_file() and not own.is_file() else None
        return open_layers(
            saved.path,
            config=config,
            num_heads=self.num_heads,
            stack=self.stack,
            layers=self.layers if layers is None else layers,
            unproven=self.unproven,
        )


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
    selection = Selection(num_heads, stack, layers, unproven)
    records = RecordFile(folder / RECORDS_FILE if out is None else file_path(out))
    _check_same_run(checkpoints, records, selection, heads)
    recorded = {row["step"]: row.get(STATE) for row in records.rows}
    unreadable: list[tuple[SavedCheckpoint, str]] = []
    for done, saved in enumerate(checkpoints):
        if callable(progress):
            progress(done, len(checkpoints))
        state = saved.state()  # before the files are read: a change in the meantime is noticed next time
        if saved.step in recorded and recorded[saved.step] in (None, state):  # None: measured by a Monitor
            continue
        try:
            with selection.open(saved) as source:
                row = make_record(saved.step, checkpoint_figures(source, heads)) | {STATE: state}
        except SourceError as error:
            unreadable.append((saved, str(error)))
            if say is not None:
                say(f"{saved.path.name}: left out, {error}")
            continue
        _check_same_layers(saved, row, records)
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


def _check_same_run(checkpoints: list[SavedCheckpoint], records: RecordFile, selection: Selection, heads: bool) -> None:
    """Raise unless existing records are of this run, of the selected layers and, if wanted, of as many heads.

    The first layer of one recorded checkpoint is scored again and compared.
    """
    rows = {row["step"]: row for row in records.rows}
    known = [saved for saved in checkpoints if saved.step in rows]
    # The newest whose files are as they were; one that was written again says nothing about the others.
    for saved in sorted(known, key=lambda one: (rows[one.step].get(STATE) == one.state(), one.step), reverse=True):
        row = rows[saved.step]
        try:
            with selection.open(saved) as source:
                selected = [(layer.stack, layer.layer) for layer in source.unread]
            with selection.open(saved, layers=row["layer"][:1]) as source:
                again = make_record(saved.step, checkpoint_figures(source, heads))
            stack, number, symmetry = row["stack"][0], row["layer"][0], row["symmetry"][0]
        except (SourceError, KeyError, IndexError, TypeError):
            continue  # deleted or damaged since it was recorded; another checkpoint may be comparable
        scores = list(zip(again["stack"], again["symmetry"], strict=True))
        if not any(other == stack and _close(score, symmetry) for other, score in scores):
            raise InputError(
                f"{records.path}: holds another run, at step {saved.step} a symmetry of {symmetry} where "
                f"{saved.path.name} has {scores[0][1]}; choose another file with --out (out=)"
            )
        if selected != list(zip(row["stack"], row["layer"], strict=True)):
            raise InputError(
                f"{records.path}: holds {len(row['layer'])} layers from {stack} layer {number} on, but "
                f"{len(selected)} from {selected[0][0]} layer {selected[0][1]} on are selected; "
                "choose another file with --out (out=)"
            )
        recorded, wanted = _head_count(row), _head_count(again)
        if heads and recorded != wanted:
            raise InputError(
                f"{records.path}: holds {recorded} heads of {stack} layer {number}, but {wanted} are wanted; "
                "choose another file with --out (out=), or leave out heads with --no-heads (heads=False)"
            )
        return


def _check_same_layers(saved: SavedCheckpoint, row: Record, records: RecordFile) -> None:
    """Raise unless the record has the same layers as those in the file."""
    if records.rows and any(records.rows[0].get(name) != row[name] for name in ("stack", "layer")):
        raise InputError(
            f"{records.path}: holds another run, with {_layers_text(records.rows[0])} where "
            f"{saved.path.name} has {_layers_text(row)}; choose another file with --out (out=)"
        )


def _head_count(row: Record) -> int:
    """Return the number of heads of the first layer of a record; 0 where it holds none."""
    first = next(iter(row.get("head_symmetry") or ()), None)
    return len(first) if isinstance(first, list) else 0


def _layers_text(row: Record) -> str:
    """Return how many layers of which stacks a record has."""
    stacks: Counter[str] = Counter(row.get("stack", ()))
    return joined_names(f"{count} {stack} layers" for stack, count in stacks.items()) or "no layers"


def _close(a: float | None, b: float | None) -> bool:
    return a is b if a is None or b is None else abs(a - b) <= SAME_SCORE
