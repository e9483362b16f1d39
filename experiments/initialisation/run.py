"""Run a grid of paired runs in slices of time; each finished run is appended to the results at once."""

from __future__ import annotations

import shutil
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attngeo.errors import InputError
from attngeo.io.files import check_writable, folder_lock, write_errors
from attngeo.io.progress import Progress
from attngeo.training.data.tokens import Tokens, open_tokens
from attngeo.training.monitoring.records import read_records
from attngeo.training.pretraining.config import RESULT_NEUTRAL, PretrainConfig
from attngeo.training.pretraining.engine import ProcessGroup, process_group
from attngeo.training.pretraining.pretrain import Run, TrainingError, train
from experiments.initialisation.claims import claim
from experiments.initialisation.fine_tuning import fine_tune
from experiments.initialisation.grid import FINE_TUNED, Cell, custom_grid, group_cells
from experiments.initialisation.runs import FinishedRun, append_run, read_runs
from experiments.initialisation.text.packed_tokens import unpacked

Say = Callable[[str], None]
_AT_EVERY_EVALUATION = frozenset({"step", "train_loss", "eval_loss"})


def run_experiment(
    tokens: Path,
    results: Path,
    *,
    groups: Sequence[str] = (),
    starts: Sequence[str] = (),
    custom: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    fine_tuning: bool = False,
    **options: Any,
) -> int:
    """Run a part of the experiment's grid, or a custom grid; return the number of runs left.

    tokens: folder of token files, packed or not
    groups: parts of the experiment's grid; "core" if none is named and there is no custom grid
    custom: any of lr, seeds, steps, size, objective; with groups only lr, in place of their learning rates
    starts: only these initialisations; by default all of a group, or baseline and unit symmetric of a custom grid
    settings: KEY=VALUE, in place of the usual settings
    fine_tuning: fine-tune after each run; the groups in FINE_TUNED always are
    results, options: as in `run_grid`
    """
    parsed = dict(_parsed(setting) for setting in settings)
    custom = {key: value for key, value in (custom or {}).items() if value not in (None, [])}
    rates = custom.pop("lr", ())
    if custom and groups:
        raise InputError(f"{', '.join(custom)}: a setting of a custom grid, cannot be combined with "
                         f"group {' '.join(groups)}")  # fmt: skip
    if custom or (rates and not groups):
        custom = {"seeds": 3, **custom}
        cells = custom_grid(starts or ("baseline", "unit symmetric"), rates or (5e-4,), settings=parsed, **custom)
    else:
        cells = group_cells(groups or ["core"], starts or None, parsed, rates)
    neutral = {key: value for key, value in parsed.items() if key in RESULT_NEUTRAL}
    fine_tuned = fine_tuning or not FINE_TUNED.isdisjoint(groups)
    return run_grid(cells, unpacked(tokens), results, fine_tuning=fine_tuned, **options, **neutral)


def run_grid(
    cells: Sequence[Cell],
    tokens: Path,
    results: Path,
    *,
    work: Path,
    done: Sequence[Path] = (),
    minutes: float | None = None,
    fine_tuning: bool = False,
    say: Say = print,
    progress: Progress | None = None,
    **neutral: Any,
) -> int:
    """Run the cells that are not finished yet, in order; return the number of runs that are still not finished.

    tokens: folder of plain token files
    results: file to which finished runs are appended; the runs in it and in `done` are skipped
    work: folder of unfinished runs; a run that a slice of time cut off continues from there. Several processes may
        work on one grid with the same results and folder: a run that one of them has begun is left out by the others
    minutes: length of the slice of time; no step is taken after it, and a run is not started if it would not fit,
        judged by the first run of its kind
    fine_tuning: fine-tune each trained model on two tasks; their accuracy is one of the facts of the run
    progress: called with (steps done, steps in all)
    neutral: settings that do not change results, `compile` and `checkpoints`
    """
    opened, processes = open_tokens(tokens), process_group()
    earlier = _finished_before(done, results)
    _check_tokens(earlier, opened)
    with write_errors(results):  # before the first run, not after it
        results.parent.mkdir(parents=True, exist_ok=True)
        check_writable(results)
    left = [cell for cell in cells if cell.key not in _keys(earlier)]
    say(f"{len(cells)} runs, {len(cells) - len(left)} finished before")
    began = time.monotonic()
    deadline = began + 60 * minutes if minutes is not None else float("inf")
    durations: dict[tuple[Any, ...], float] = {}  # seconds of a run, by everything that decides them
    steps_before, all_steps = 0, sum(cell.steps for cell in left)

    def run_progress(step: int, _: int | None) -> None:
        if progress is not None:
            progress(steps_before + step, all_steps)

    for cell in left:
        now = time.monotonic()
        kind = (cell.objective, cell.size, cell.steps, cell.other)
        if processes.any(now + durations.get(kind, 0.0) > deadline):
            say(f"time is up after {(now - began) / 60:.1f} minutes")
            break
        with _claimed(work, cell, processes) as is_mine:
            if is_mine and cell.key not in _keys(
                _finished_before(done, results)
            ):  # finished meanwhile by another process
                config = cell.config(str(work / cell.key), str(tokens), **neutral)
                # A tokenizer larger than the usual vocabulary needs a larger model.
                config = config.with_changes(vocab=max(config.vocab, opened.vocabulary))
                run = _run_cell(cell, config, opened, processes, run_progress, deadline, fine_tuning, neutral, say)
                if run is None:
                    break
                durations[kind] = time.monotonic() - now
                _keep(run, config, results, work, processes)
                say(_summary(run))
        steps_before += cell.steps
    return len({cell.key for cell in left} - _keys(_finished_before(done, results)))


def _finished_before(done: Iterable[Path], results: Path) -> list[FinishedRun]:
    return read_runs([path for path in (*done, results) if path.exists()])


def _keys(runs: Iterable[FinishedRun]) -> set[str]:
    return {run.cell.key for run in runs}


@contextmanager
def _claimed(work: Path, cell: Cell, processes: ProcessGroup) -> Iterator[bool]:
    """Claim the run for the processes that train together; the first of them does it for all."""
    with claim(work, cell.key) if processes.rank == 0 else nullcontext(False) as is_mine:
        yield processes.any(is_mine)


def _run_cell(
    cell: Cell,
    config: PretrainConfig,
    tokens: Tokens,
    processes: ProcessGroup,
    progress: Progress,
    deadline: float,
    fine_tuning: bool,
    neutral: Mapping[str, Any],
    say: Say,
) -> FinishedRun | None:
    """Run one cell, from where it was cut off; None: the slice of time ended before it was finished."""
    began = time.monotonic()
    facts: dict[str, Any] = {}
    is_low = partial(_is_below, Path(config.out) / "metrics.jsonl", cell.until_loss)
    stop = partial(_is_due, deadline, is_low)
    outcome = _train(config, tokens, processes, progress, stop=stop)
    if isinstance(outcome, Run) and not outcome.finished and not is_low():
        say(f"{cell.key}: stopped at step {outcome.records[-1]['step']}, continues from {config.out}")
        return None
    if fine_tuning and isinstance(outcome, Run) and outcome.finished and outcome.model is not None:
        facts["fine_tuning"] = fine_tune(outcome.model, tokens, config, processes)
    facts |= _facts(processes, time.monotonic() - began, neutral) | {"config": _result_settings(config)}
    return _finished(cell, config, tokens, outcome, facts)


def _keep(run: FinishedRun, config: PretrainConfig, results: Path, work: Path, processes: ProcessGroup) -> None:
    """Append a finished run to the results and remove its folder."""
    if processes.rank == 0:
        with folder_lock(work, wait=True):  # another process may append as well
            append_run(results, run)
        shutil.rmtree(config.out)
    processes.wait()


def _train(
    config: PretrainConfig, tokens: Tokens, processes: ProcessGroup, progress: Progress, **options: Any
) -> Run | TrainingError:
    """Return the run, finished or stopped, or the error of a run that diverged; options: as in `train`."""
    try:
        return train(config, tokens, processes, progress=progress, **options)
    except TrainingError as error:  # a run that diverges is a result; the other runs go on
        return error


def _is_below(records: Path, loss: float | None) -> bool:
    """Tell whether the last record has a held-out loss below `loss`; False where there is none to reach."""
    return loss is not None and read_records(records)[-1]["eval_loss"] < loss


def _is_due(deadline: float, is_low: Callable[[], bool]) -> bool:
    """Tell whether a run stops now: the slice of time is over, or its loss is low enough."""
    return time.monotonic() > deadline or is_low()


def _result_settings(config: PretrainConfig) -> dict[str, Any]:
    """Return the settings that decide the result of a run."""
    return {key: value for key, value in asdict(config).items() if key not in RESULT_NEUTRAL}


def _finished(
    cell: Cell, config: PretrainConfig, tokens: Tokens, outcome: Run | TrainingError, facts: dict[str, Any]
) -> FinishedRun:
    facts["tokens"] = tokens.digest
    if isinstance(outcome, Run):
        return FinishedRun(cell, tuple(_thinned(outcome.records)), facts)
    records = read_records(Path(config.out) / "metrics.jsonl")
    return FinishedRun(cell, tuple(_thinned(records)), facts | {"diverged": outcome.step})


def _facts(processes: ProcessGroup, seconds: float, neutral: Mapping[str, Any]) -> dict[str, Any]:
    device = processes.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"device": name, "torch": torch.__version__, "seconds": round(seconds, 1), "settings": dict(neutral)}


def _check_tokens(runs: Iterable[FinishedRun], tokens: Tokens) -> None:
    """Raise if a run was trained on another corpus; runs of early versions do not say on which."""
    for run in runs:
        if run.facts.get("tokens", tokens.digest) != tokens.digest:
            raise InputError(f"{tokens.folder}: {run.cell.key} was trained on other tokens; "
                             "name other results for these, and another work folder")  # fmt: skip


def _thinned(records: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the records: losses at every evaluation, the scores of layers at every fifth, those of heads at the ends.

    Scores take most of the space of a log.
    """
    last = len(records) - 1
    for number, record in enumerate(records):
        is_end = number in (0, last)
        yield {
            key: value
            for key, value in record.items()
            if is_end or key in _AT_EVERY_EVALUATION or (number % 5 == 0 and not key.startswith("head_"))
        }


def _summary(run: FinishedRun) -> str:
    if run.diverged is not None:
        return f"{run.cell.key}: diverged, the loss is not finite from step {run.diverged} on"
    last = run.records[-1]
    return (f"{run.cell.key}: loss {run.loss:.4f}, {run.facts['seconds']:.1f} s, {last['steps_per_second']} steps/s, "
            f"symmetry {last['symmetry']}, max logit {last['max_logit']}")  # fmt: skip


def _parsed(setting: str) -> tuple[str, Any]:
    """Return KEY=VALUE as key and value, read as in a config; text may go without quotes."""
    key, equals, value = (part.strip() for part in setting.partition("="))
    if not (equals and key and value):
        raise InputError(f"set {setting}: expected KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value
