"""Finished runs of the experiment, kept as one line of JSON each in compressed files (`*.jsonl.xz`)."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from attngeo.errors import SourceError, reason
from attngeo.io.archive import parse_json
from attngeo.io.files import write_errors, write_file
from experiments.initialisation.grid import Cell

Item = TypeVar("Item")
PLATEAU_END = 5.5  # nats; the first plateau of the held-out loss is at 5.7 to 5.9


@dataclass(frozen=True)
class FinishedRun:
    """A run of the grid that needs no more steps, with its records, one per evaluation."""

    cell: Cell
    records: tuple[dict[str, Any], ...]
    # Device, torch version, seconds, digest of its tokens; `diverged`: the step from which the loss is not finite.
    facts: dict[str, Any]

    @property
    def loss(self) -> float:
        """Held-out loss in nats at the last evaluation."""
        return float(self.records[-1]["eval_loss"])

    @property
    def diverged(self) -> int | None:
        """The step from which the loss is not finite; None for a run that did not diverge."""
        step: int | None = self.facts.get("diverged")
        return step

    def first_below(self, loss: float) -> int | None:
        """Return the step of the first evaluation with a held-out loss below `loss`; None if there is none."""
        return next((record["step"] for record in self.records if record["eval_loss"] < loss), None)

    def to_json(self) -> str:
        """Return the run as one line of JSON."""
        cell = {key: value for key, value in asdict(self.cell).items() if key != "other" or value}
        return json.dumps({"cell": cell, "facts": self.facts, "records": self.records}, separators=(",", ":")) + "\n"


def append_run(path: Path, run: FinishedRun) -> None:
    """Add a run to a file, as an xz stream of its own. The file is replaced atomically: a kill loses nothing."""
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else b""
        write_file(path, before + lzma.compress(run.to_json().encode()))


def read_runs(paths: Iterable[Path]) -> list[FinishedRun]:
    """Return the finished runs in these files and in the `*.jsonl.xz` of these folders, each cell once."""
    runs: dict[str, FinishedRun] = {}
    for path in paths:
        for file in sorted(path.glob("*.jsonl.xz")) if path.is_dir() else [path]:
            try:
                with lzma.open(file, "rt", encoding="utf-8") as lines:
                    for line in lines:
                        run = _from_json(line)
                        runs.setdefault(run.cell.key, run)
            except (OSError, EOFError, lzma.LZMAError, ValueError, LookupError, TypeError) as error:
                raise SourceError(f"{file}: not a file of finished runs ({reason(error)})") from error
    return list(runs.values())


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Return the items in lists of equal `key`, in the order in which they came."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _from_json(line: str) -> FinishedRun:
    """Return the run of one line; any error means that the line is not one."""
    row = parse_json(line)
    cell = dict(row["cell"])
    other = tuple(
        (str(key), tuple(value) if isinstance(value, list) else value) for key, value in cell.pop("other", ())
    )
    return FinishedRun(Cell(**cell, other=other), tuple(map(dict, row["records"])), dict(row["facts"]))
