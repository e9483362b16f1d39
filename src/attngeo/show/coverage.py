"""What is known of model types, as text: `attngeo coverage`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.show.tables import aligned, cells

if TYPE_CHECKING:
    import polars as pl

_WIDEST = 30  # characters of a cell in the table of all types
LEGEND = (
    "status: right (compared with a live model), refused, unproven, none (no self-attention), unbuilt, not examined",
    "rotation: which dimensions of a head rotate together; capture: which stacks `attngeo organize` can record",
    "prune: whether `attngeo prune` can remove heads",
)


def coverage_report(frame: pl.DataFrame) -> str:
    """Return rows of `coverage` as text: one type as a list, several as a table with long cells cut short."""
    if frame.height == 1:
        values = [(name, value or "-") for name, value in frame.row(0, named=True).items()]
        return "\n".join(aligned(values, [False, False])) + "\n"
    frame = frame.select(*(name for name in frame.columns if name != "reason"), "reason")  # the longest is last
    rows = [[text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…" for text in row] for row in cells(frame)]
    for row, kind in zip(rows, frame["type"], strict=True):
        row[0] = kind  # whole, so that it can be searched for
    lines = aligned([frame.columns, *rows], [False] * frame.width)
    return "\n".join([*lines, "", *LEGEND, "attngeo coverage TYPE prints one type in full"]) + "\n"
