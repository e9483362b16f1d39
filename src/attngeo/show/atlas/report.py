"""`summary_report`: organised networks in words, one table per network with means over texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        unit = "pairs of texts" if first["table"] == "agreement" else "texts"
        title = f"{name}: {first['table']}, {first['texts']} {unit}"
        title += f", {first['options']}" if first["options"] else ""
        head = [["figure", "mean", "interval", "std", "control", "better"]]
        rows = [
            [
                row["figure"],
                _number(row["mean"]),
                "" if row["low"] is None else f"{_number(row['low'])} to {_number(row['high'])}",
                _number(row["std"]),
                _number(row["control"]),
                "" if row["better"] is None else f"{100 * row['better']:.0f}%",
            ]
            for row in part.iter_rows(named=True)
        ]
        sections.append("\n".join([title, *aligned(head + rows, right=[False, True, True, True, True, True])]))
    return "\n\n".join([*sections, _LEGEND])


def _number(value: float | None) -> str:
    """Return a number with three or more significant digits."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1 else f"{value:.3f}"
