"""Records: the measurements of a training run, the JSON Lines file that holds them, and their values for trackers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from attngeo.arguments import file_path, is_whole
from attngeo.data import bundled
from attngeo.errors import InputError, SourceError
from attngeo.io.archive import parse_json
from attngeo.io.files import write_errors, write_file

Record = dict[str, Any]  # key → value; every record has `step`, a whole number
RECORDS_FILE = "attngeo.jsonl"  # the file in the folder of a run that a Monitor and `track` write

# Measured of every layer (a list over layers) and, with the prefix "head_", of every head of it.
FIGURES = (
    "symmetry",
    "directionality",
    "norm",
    "row_spread",
    "column_spread",
    "dominance",
    "self_attending",
    "symmetry_rope",  # left out of a record in which no layer has it
)
LOGIT = "max_logit"
STATE = "files"  # of a saved checkpoint: a digest of the names, sizes and times of its files
Detail = Literal["stacks", "layers", "heads"]  # what trackers get
_QUARTILES = {"lower_quartile": 0.25, "median": 0.5, "upper_quartile": 0.75}
DIGITS = 7  # significant digits; the scores agree with `attngeo.score` to 1e-6


@dataclass(frozen=True)
class LayerFigures:
    """The figures of one attention layer, in the order of FIGURES; NaN where a figure does not exist.

    row_spread and column_spread are std/mean of the norms of the rows and of the columns of M, and dominance is the
    logarithm of their ratio.
    """

    stack: str
    layer: int
    whole: Sequence[float]  # of the layer form
    heads: Sequence[Sequence[float]] = ()
    logits: Sequence[float] | None = None  # the largest |attention logit| of every head
    numbers: Sequence[int] | None = None  # of the heads in the full model, for a pruned layer; None: 0, 1, 2, …


def make_record(step: int, layers: Sequence[LayerFigures]) -> Record:
    """Return the record of one step: lists over the layers, lists of lists over their heads.

    >>> figures = [0.5, -0.1, 2.0, 0.3, 0.4, -0.3, 0.1, math.nan]  # in the order of FIGURES
    >>> make_record(0, [LayerFigures("encoder", 0, figures)])["symmetry"]
    [0.5]
    """
    row: Record = {"step": step, "stack": [one.stack for one in layers], "layer": [one.layer for one in layers]}
    for index, name in enumerate(FIGURES):
        row[name] = [_rounded(one.whole[index]) for one in layers]
    if any(one.logits for one in layers):
        row[LOGIT] = [_rounded(max(one.logits)) if one.logits else None for one in layers]
    if any(one.heads for one in layers):
        if any(one.numbers is not None for one in layers):  # of a pruned model
            row["head"] = [list(range(len(one.heads)) if one.numbers is None else one.numbers) for one in layers]
        for index, name in enumerate(FIGURES):
            row[f"head_{name}"] = [[_rounded(head[index]) for head in one.heads] for one in layers]
        if LOGIT in row:
            row[f"head_{LOGIT}"] = [[_rounded(value) for value in one.logits or ()] for one in layers]
    if all(value is None for value in row["symmetry_rope"]):
        del row["symmetry_rope"]
        row.pop("head_symmetry_rope", None)
    return row


def _rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


class RecordFile:
    """A JSON Lines file of records in order of step.

    path:      the file; records that it already holds are kept
    last_step: records of later steps are dropped, as when a run continues from a checkpoint
    writing:   False for processes that only keep their records in memory

    A Monitor and `track` may write the same file: records that the other added in the meantime are kept.
    """

    def __init__(self, path: Path, last_step: float = math.inf, writing: bool = True) -> None:
        self.path, self.writing = path, writing
        self.rows = [row for row in read_records(path) if row["step"] <= last_step] if path.exists() else []
        self._size = -1  # of the file when this process last wrote it
        self._rewrite()

    def add(self, row: Record) -> None:
        """Add a record: appended, or inserted where the file holds its step or a later one."""
        merged = self.writing and _size(self.path) != self._size and self._merge_others()
        last = not self.rows or self.rows[-1]["step"] < row["step"]
        others = [other for other in self.rows if other["step"] != row["step"]]
        self.rows[:] = sorted([*others, row], key=lambda other: other["step"])
        if last and not merged:
            self._write(lambda: _append(self.path, _line(row)))
        else:
            self._rewrite()

    def _merge_others(self) -> bool:
        """Add the records that another process wrote; return False where they cannot be read."""
        own = {row["step"] for row in self.rows}
        try:
            others = read_records(self.path) if self.path.exists() else []
        except SourceError:
            return False  # the write that follows reports what is wrong
        self.rows += [row for row in others if row["step"] not in own]
        self.rows.sort(key=lambda row: row["step"])
        return True

    def _rewrite(self) -> None:
        self._write(lambda: write_file(self.path, "".join(map(_line, self.rows)).encode()))

    def _write(self, write: Callable[[], None]) -> None:
        with write_errors(self.path):
            if self.writing:
                write()
                self._size = _size(self.path)


def bundled_records(name: str) -> list[Record]:
    """Return what the bundled "encoder" or "decoder" recorded at 13 evaluations of its training.

    >>> [record["step"] for record in bundled_records("decoder")][::4]
    [0, 5333, 10667, 16000]
    """
    return read_records(bundled(name) / "training.jsonl")


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records of a JSON Lines file; an incomplete last line, which a killed process left, is left out."""
    path = file_path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from error
    rows, lines = [], content.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
        except ValueError:
            if number == len(lines) and line.startswith(b"{") and not content.endswith(b"\n"):
                break
            row = None
        if not _is_record(row):
            raise SourceError(f"{path}: line {number} is not a record, expected a JSON object with a whole number "
                              "`step` and lists with one value per layer")  # fmt: skip
        rows.append(row)
    return rows


def _is_record(row: Any) -> bool:
    if not isinstance(row, dict) or not is_whole(row.get("step"), 0):
        return False
    of_layers = [row[name] for name in ("stack", "layer", *FIGURES, LOGIT) if name in row]
    return all(isinstance(values, list) for values in of_layers) and len(set(map(len, of_layers))) < 2


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _append(path: Path, text: str) -> None:
    with open(path, "ab") as file:
        file.write(text.encode())


# ---- values for trackers


def check_detail(detail: object) -> None:
    """Raise InputError unless `detail` is one of the names of Detail."""
    if detail not in get_args(Detail):
        raise InputError(f"detail is {detail!r}, expected 'stacks', 'layers' or 'heads'")


def tracker_values(row: Record, detail: Detail = "stacks") -> dict[str, float]:
    """Return the median and the quartiles of each figure over the layers of each stack; missing figures are left out.

    detail: "layers" adds each layer, "heads" each layer and each head

    >>> row = {"step": 0, "stack": ["encoder"] * 3, "layer": [0, 1, 2], "symmetry": [0.1, 0.2, 0.6]}
    >>> values = tracker_values(row)
    >>> values["attngeo/encoder/symmetry/median"], round(values["attngeo/encoder/symmetry/upper_quartile"], 3)
    (0.2, 0.4)
    >>> tracker_values(row, "layers")["attngeo/encoder/L2/symmetry"]
    0.6
    """
    values: dict[str, float] = {}
    for stack in dict.fromkeys(row["stack"]):
        for name in (*FIGURES, LOGIT):
            figures = [value for own, value in zip(row["stack"], row.get(name, ()), strict=False) if own == stack]
            known = sorted(value for value in figures if value is not None)
            for key, share in _QUARTILES.items() if known else ():
                values[f"attngeo/{stack}/{name}/{key}"] = float(np.quantile(known, share))
            if known and name == LOGIT:  # one layer is enough to make training unstable
                values[f"attngeo/{stack}/{name}/max"] = known[-1]
    return values if detail == "stacks" else values | layer_values(row, heads=detail == "heads")


def layer_values(row: Record, heads: bool = True) -> dict[str, float]:
    """Return each figure of each layer and, if `heads`, of each head: "attngeo/encoder/L3H7/symmetry" → number."""
    values: dict[str, float | None] = {}
    for index, (stack, layer) in enumerate(zip(row["stack"], row["layer"], strict=True)):
        own = {name: of_layers[index] for name, of_layers in row.items() if isinstance(of_layers, list)}
        for name in (*FIGURES, LOGIT):
            values[f"attngeo/{stack}/L{layer}/{name}"] = own.get(name)
            of_heads = own.get(f"head_{name}", ()) if heads else ()
            numbers = own.get("head", range(len(of_heads)))  # a pruned layer names its heads
            for head, value in zip(numbers, of_heads, strict=False):
                values[f"attngeo/{stack}/L{layer}H{head}/{name}"] = value
    return {name: value for name, value in values.items() if value is not None}
