"""Measurements of a run as JSON lines, one step a line: written whole, continued after a kill, read back."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attngeo.errors import SourceError
from attngeo.io.atomic import write_errors, write_file

Record = dict[str, Any]
FILE = "attngeo.jsonl"  # in the folder of a run, what a Monitor and `track` write

# Of every layer (a list over layers) and, under the same name after "head_", of every head of it.
FIGURES = ("symmetry", "directionality", "norm", "row_spread", "column_spread")
LOGIT = "max_logit"
DIGITS = 7  # well past what the scores are held to against `attngeo.score`


@dataclass(frozen=True)
class LayerFigures:
    """What was measured of one attention layer; each row in the order of FIGURES, NaN where a figure does not exist.

    row_spread and column_spread are std/mean of the norms of M's rows and of its columns.
    """

    stack: str
    layer: int
    whole: Sequence[float]
    heads: Sequence[Sequence[float]] = ()
    logits: Sequence[float] | None = None  # the largest |attention logit| of every head


def record(step: int, layers: Sequence[LayerFigures]) -> Record:
    """One line of the file: lists over the layers, lists of lists over their heads."""
    row: Record = {"step": step, "stack": [one.stack for one in layers], "layer": [one.layer for one in layers]}
    for at, name in enumerate(FIGURES):
        row[name] = [rounded(one.whole[at]) for one in layers]
    if any(one.logits for one in layers):
        row[LOGIT] = [rounded(max(one.logits)) if one.logits else None for one in layers]
    if any(one.heads for one in layers):
        for at, name in enumerate(FIGURES):
            row[f"head_{name}"] = [[rounded(head[at]) for head in one.heads] for one in layers]
        if LOGIT in row:
            row[f"head_{LOGIT}"] = [[rounded(value) for value in one.logits or ()] for one in layers]
    return row


def flat(row: Record) -> dict[str, float]:
    """One record as loggers want it: "attngeo/encoder/L3H7/symmetry" → number; figures that do not exist left out."""
    found: dict[str, float | None] = {}
    for at, (stack, layer) in enumerate(zip(row["stack"], row["layer"], strict=True)):
        for name in (*FIGURES, LOGIT):
            found[f"attngeo/{stack}/L{layer}/{name}"] = row.get(name, {at: None})[at]
            for head, value in enumerate(row.get(f"head_{name}", {at: ()})[at]):
                found[f"attngeo/{stack}/L{layer}H{head}/{name}"] = value
    return {name: value for name, value in found.items() if value is not None}


def rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


class Records:
    """A JSONL file of measurements in order of step; continuing a run drops what was written after `upto`.

    writing  false for the processes that only keep their rows in memory

    A Monitor and `track` may write the same file: what the other put there since is kept.
    """

    def __init__(self, path: Path, upto: float = math.inf, writing: bool = True) -> None:
        self.path, self.writing = path, writing
        self.rows = [row for row in read_records(path) if row["step"] <= upto] if path.exists() else []
        self._size = -1  # of the file as this process left it
        self._rewrite()

    def add(self, row: Record) -> None:
        """At the end of the file in one write; where its step or a later one is there already, in its place."""
        joined = self.writing and _size(self.path) != self._size and self._join()
        at = bisect_left(self.rows, row["step"], key=lambda other: other["step"])
        last = at == len(self.rows)
        self.rows[at : at + (not last and self.rows[at]["step"] == row["step"])] = [row]
        if last and not joined:
            self._try(lambda: _append(self.path, line(row)))
        else:
            self._rewrite()

    def _join(self) -> bool:
        """Take over the rows another process wrote; false where they cannot be read."""
        own = {row["step"] for row in self.rows}
        try:
            found = read_records(self.path) if self.path.exists() else []
        except SourceError:
            return False  # writing will say what is wrong
        self.rows += [row for row in found if row["step"] not in own]
        self.rows.sort(key=lambda row: row["step"])
        return True

    def _rewrite(self) -> None:
        self._try(lambda: write_file(self.path, "".join(map(line, self.rows)).encode()))

    def _try(self, write: Callable[[], None]) -> None:
        with write_errors(self.path):
            if self.writing:
                write()
                self._size = _size(self.path)


def read_records(path: Path) -> list[Record]:
    """The complete lines of a JSONL file; a last line that was cut off is left out."""
    try:
        *whole, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from error
    rows = []
    for number, text in enumerate(whole, 1):
        try:
            row = json.loads(text)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise SourceError(f"{path}: line {number} is not a record, a JSON object with its `step` expected")
        rows.append(row)
    return rows


def line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _append(path: Path, text: str) -> None:
    with open(path, "ab", buffering=0) as file:  # one write: a kill leaves a whole line or a tail that is dropped
        file.write(text.encode())
