"""The comparison of starts as a table: for people, for pages, for programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attngeo.show.tables import aligned

if TYPE_CHECKING:
    from experiments.initialisation.grid import Cell
    from experiments.initialisation.statistics import Compared, Finished, Mean

_TITLES = ("setting", "start", "seeds", "final loss", "against {} [95%]", "p", "detectable", "steps saved [95%]",
           "p", "detectable", "reached", "diverged")  # fmt: skip
_NOTE = (
    "against {0}: final loss less that of {0}, over the seeds both have; steps saved: 1 - (first evaluation at "
    "or below the last loss of {0})/(all steps), 0 where it is not reached; [95%] and p: Student's t over paired "
    "seeds; detectable: the smallest true difference these seeds show 4 times of 5"
)


def as_text(table: Sequence[Compared]) -> str:
    """Aligned columns, what they mean under them."""
    rows, note = _worded(table)
    return "\n".join([*aligned(rows, right=[False] * len(rows[0])), "", note])


def as_markdown(table: Sequence[Compared]) -> str:
    """A pipe table, what its columns mean under it."""
    rows, note = _worded(table)
    lines = [f"| {' | '.join(row)} |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]]
    return "\n".join([*lines, "", note])


def as_csv(table: Sequence[Compared]) -> str:
    """Every figure with every digit; nothing where there is none."""
    return _csv([_figures(one) for one in table])


def forms_as_csv(runs: Sequence[Finished]) -> str:
    """Symmetry and directionality of every layer at the end of training: mean, lowest and highest of the seeds."""
    rows: list[dict[str, Any]] = []
    for mine in grouped(runs, lambda run: (run.cell.setting, run.cell.start)):
        for layer in range(len(mine[0].records[-1]["symmetry"])):
            row = {**_cell(mine[0].cell), "seeds": len(mine), "layer": layer}
            for score in ("symmetry", "directionality"):
                values = [run.records[-1][score][layer] for run in mine]
                row |= {
                    score: math.fsum(values) / len(values),
                    f"{score}_low": min(values),
                    f"{score}_high": max(values),
                }
            rows.append(row)
    return _csv(rows)


def grouped(rows: Iterable[Any], by: Callable[[Any], Any]) -> list[list[Any]]:
    """Rows that `by` makes the same of, in the order they came."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row)
    return list(groups.values())


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


FORMATS: dict[str, Callable[[Sequence[Compared]], str]] = {
    "table": as_text,
    "markdown": as_markdown,
    "csv": as_csv,
}


def _worded(table: Sequence[Compared]) -> tuple[list[list[str]], str]:
    """Titles and rows, and what they mean."""
    against = table[0].against if table else "baseline"
    return _filled([[title.format(against) for title in _TITLES], *map(_row, table)]), _NOTE.format(against)


def _row(one: Compared) -> list[str]:
    several = len(one.seeds) > 1
    row = [one.cell.label, one.cell.start, str(len(one.seeds)), f"{one.loss:.4f}" if one.losses else ""]
    for found, form in ((one.difference, "+.4f"), (one.saved, ".0%")):
        if found is None:
            row += ["", "", ""]
        elif found is one.saved and not one.reached:
            row += ["not reached", "", ""]
        elif several:
            low, high, least = (format(value, form) for value in (found.low, found.high, found.detectable))
            row += [f"{found.mean:{form}} [{low}, {high}]", f"{found.p:.2g}", least.removeprefix("+")]
        else:
            row += [f"{found.mean:{form}}", "", ""]
    row.append("" if one.saved is None else f"{one.reached}/{len(one.seeds)}")
    return [*row, ", ".join(f"seed {seed} at step {step}" for seed, step in one.diverged)]


def _filled(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Without the columns that have nothing under their title."""
    keep = [any(cells[1:]) for cells in zip(*rows, strict=True)]
    return [[cell for cell, kept in zip(row, keep, strict=True) if kept] for row in rows]


def _figures(one: Compared) -> dict[str, Any]:
    return {
        **_cell(one.cell),
        "seeds": len(one.seeds),
        "loss": one.loss if one.losses else None,
        "against": one.against,
        **_mean("difference", one.difference),
        **_mean("saved", one.saved),
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


def _mean(name: str, found: Mean | None) -> dict[str, float | None]:
    parts = ("mean", "low", "high", "p", "detectable")
    values = [math.nan if found is None else getattr(found, part) for part in parts]
    names = [name, *(f"{name}_{part}" for part in parts[1:])]
    return {key: None if math.isnan(value) else value for key, value in zip(names, values, strict=True)}
