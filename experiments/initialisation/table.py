"""The comparison of initialisations as aligned text, as a Markdown table and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attngeo.show.tables import aligned
from experiments.page_tables import pipe_table

if TYPE_CHECKING:
    from experiments.initialisation.grid import Cell
    from experiments.initialisation.statistics import Comparison, Estimate

_TITLES = ("setting", "start", "seeds", "final loss", "against {} [95%]", "p", "detectable", "steps saved [95%]",
           "p", "detectable", "reached", "diverged")  # fmt: skip
_NOTE = (
    "start: initialisation; against {0}: final loss minus that of {0}, over the seeds both have; steps saved: "
    "1 - (first evaluation at or below the last loss of {0})/(all steps), 0 where it is not reached; [95%] and p: "
    "Student's t over paired seeds; detectable: the smallest true difference that a test over these seeds finds "
    "4 times of 5; reached: seeds that reach the last loss of {0}"
)


def as_text(table: Sequence[Comparison]) -> str:
    """Return aligned columns, with an explanation of the columns below them."""
    rows, note = _rows_and_note(table)
    return "\n".join([*aligned(rows, right=[False] * len(rows[0])), "", note])


def as_markdown(table: Sequence[Comparison]) -> str:
    """Return a pipe table, with an explanation of the columns below it."""
    rows, note = _rows_and_note(table)
    return "\n".join([pipe_table(rows[0], rows[1:]), "", note])


def as_csv(table: Sequence[Comparison]) -> str:
    """Return every number with every digit; a number that does not exist is an empty field."""
    return _csv([_numbers(comparison) for comparison in table])


FORMATS: dict[str, Callable[[Sequence[Comparison]], str]] = {
    "table": as_text,
    "markdown": as_markdown,
    "csv": as_csv,
}


def _rows_and_note(table: Sequence[Comparison]) -> tuple[list[list[str]], str]:
    """Return the titles and rows as text, empty columns left out, and the explanation of the columns."""
    against = table[0].against if table else "baseline"
    rows = [[title.format(against) for title in _TITLES], *map(_row, table)]
    filled = [any(column[1:]) for column in zip(*rows, strict=True)]
    rows = [[text for text, keep in zip(row, filled, strict=True) if keep] for row in rows]
    return rows, _NOTE.format(against)


def _row(one: Comparison) -> list[str]:
    row = [one.cell.label, one.cell.start, str(len(one.seeds)), f"{one.loss:.4f}" if one.losses else ""]
    for value, form in ((one.difference, "+.4f"), (one.saved, ".0%")):
        if value is None:
            row += ["", "", ""]
        elif value is one.saved and not one.reached:
            row += ["not reached", "", ""]
        elif len(one.seeds) > 1:
            low, high, least = (format(number, form) for number in (value.low, value.high, value.detectable))
            row += [f"{value.mean:{form}} [{low}, {high}]", f"{value.p:.2g}", least.removeprefix("+")]
        else:
            row += [f"{value.mean:{form}}", "", ""]
    row.append("" if one.saved is None else f"{one.reached}/{len(one.seeds)}")
    return [*row, ", ".join(f"seed {seed} at step {step}" for seed, step in one.diverged)]


def _numbers(one: Comparison) -> dict[str, Any]:
    return {
        **_cell(one.cell),
        "seeds": len(one.seeds),
        "loss": one.loss if one.losses else None,
        "against": one.against,
        **_estimate("difference", one.difference),
        **_estimate("saved", one.saved),
        "reached": None if one.saved is None else one.reached,
        "diverged": " ".join(f"{seed}:{step}" for seed, step in one.diverged),
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "objective": cell.objective,
        "size": cell.size,
        "lr": cell.lr,
        "steps": cell.steps,
        "other": " ".join(f"{key}={value}" for key, value in cell.other),
        "start": cell.start,
    }


def _estimate(name: str, value: Estimate | None) -> dict[str, float | None]:
    parts = ("mean", "low", "high", "p", "detectable")
    numbers = [math.nan if value is None else getattr(value, part) for part in parts]
    columns = [name, *(f"{name}_{part}" for part in parts[1:])]
    return {column: None if math.isnan(number) else number for column, number in zip(columns, numbers, strict=True)}


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")
