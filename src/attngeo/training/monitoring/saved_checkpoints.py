"""Find the checkpoints that a training run saved, by their names: checkpoint-N, step-N and the like."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from attngeo.arguments import file_path
from attngeo.errors import InputError, SourceError
from attngeo.io.archive import digest
from attngeo.training.monitoring.records import read_records
from attngeo.weights.sources.folder import SUFFIXES, file_state

_STEP = re.compile(r"(?:^|.*[-_.])(?:checkpoint|ckpt|global_?step|step|iter(?:ation)?)[-_=]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint of a run: a folder, or one file of weights."""

    step: int
    path: Path

    def state(self) -> str | None:
        """Return a digest that changes whenever the files may have changed; None if they cannot be listed."""
        state = file_state(self.path)
        return None if state is None else digest(*state)


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
