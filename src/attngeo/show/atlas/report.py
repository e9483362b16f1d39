"""`summary_report`: organised networks in words, one table per network with means over texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attngeo.show.tables import aligned

if TYPE_CHECKING:
    import polars as pl

_LEGEND = """\
mean, interval: over texts, with the 95% interval of the mean; std: between texts
control: the mean of the control (permuted values, dyadic trees, shuffled heads, permuted rows before the softmax)
better: share of texts on which the figure is better than its control
gain: 1 − (l1/l2 along the trees) / (l1/l2 along dyadic trees); shareN: share of coefficients with N% of the energy
rank_correlation, information, procrustes: agreement of the head geometries on two texts
"""


def summary_report(summary: pl.DataFrame) -> str:
    """Return a table per network and options, then what the columns mean.

    summary: as `Atlas.summary` returns it
    """
    sections = []
    for part in summary.partition_by("model", "revision", "content", "table", "options", maintain_order=True):
        first = part.row(0, named=True)
        name = first["model"] if first["revision"] in (None, "main") else f"{first['model']}@{first['revision']}"
        title = f"{name}: {first['table']}, {_count(first['texts'], first['table'])}"
        title += f", {first['options']}" if first["options"] else ""
        head = [["figure", "mean", "interval", "std", "control", "better"]]
        rows = [_cells(row) for row in part.iter_rows(named=True)]
        sections.append("\n".join([title, *aligned(head + rows, right=[False, True, True, True, True, True])]))
    return "\n\n".join([*sections, _LEGEND])


def _count(texts: int, table: str) -> str:
    pairs = f"pair{'s' * (texts != 1)} of " if table == "agreement" else ""
    return f"{texts} {pairs}text{'s' * (texts != 1 or bool(pairs))}"


def _cells(row: dict[str, Any]) -> list[str]:
    """Return one line of a table; shares of coefficients can be very small, and are printed as percentages."""
    number = _percentage if row["figure"].startswith("share") and not row["figure"].startswith("shared") else _number
    return [
        row["figure"],
        number(row["mean"]),
        "" if row["low"] is None else f"{number(row['low'])} to {number(row['high'])}",
        number(row["std"]),
        number(row["control"]),
        "" if row["better"] is None else f"{100 * row['better']:.0f}%",
    ]


def _percentage(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.3g}%"


def _number(value: float | None) -> str:
    """Return a number with three or more significant digits."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1 else f"{value:.3f}"
