"""A data frame as text: aligned columns to read, JSON and CSV with all digits, Markdown and LaTeX to paste."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_LATEX = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"})


def encode(frame: pl.DataFrame, form: str) -> bytes:
    """Return the content of a file as a table, json, csv, parquet, latex or markdown; all but parquet are text."""
    if form == "parquet":
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        return buffer.getvalue()
    return {"table": as_text, "json": as_json, "csv": as_csv, "latex": as_latex, "markdown": as_markdown}[form](
        frame
    ).encode()


def as_json(frame: pl.DataFrame) -> str:
    """Return an array of objects, one row per line, with the column names as keys."""
    rows = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in frame.iter_rows(named=True))
    try:
        return "[\n" + ",\n".join(rows) + "\n]\n"
    except ValueError:
        raise InputError("the table has a NaN or an infinite number, JSON cannot; choose another format") from None


def as_csv(frame: pl.DataFrame) -> str:
    """Return comma-separated values; a null is an empty field."""
    return frame.write_csv()


def as_text(frame: pl.DataFrame) -> str:
    """Return aligned columns, numbers to the right, without the columns that are empty."""
    frame = without_empty_columns(frame)
    return "\n".join(aligned([frame.columns, *cells(frame)], right=is_numeric(frame))) + "\n"


def as_markdown(frame: pl.DataFrame) -> str:
    """Return a pipe table without the columns that are empty."""
    frame = without_empty_columns(frame)
    rule = ["---:" if right else ":---" for right in is_numeric(frame)]
    body = [[cell.replace("|", r"\|") for cell in row] for row in cells(frame)]
    return "".join(f"| {' | '.join(row)} |\n" for row in [frame.columns, rule, *body])


def as_latex(frame: pl.DataFrame) -> str:
    """Return a `tabular` with the rules of booktabs, without the columns that are empty."""
    frame = without_empty_columns(frame)
    spec = "".join("r" if right else "l" for right in is_numeric(frame))
    head, *body = (
        " & ".join(cell.replace("\\", r"\textbackslash ").translate(_LATEX) for cell in row) + r" \\"
        for row in [frame.columns, *cells(frame)]
    )
    lines = [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def without_empty_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame without the columns that are null in every row; with all of them if nothing else is left."""
    kept = [name for name in frame.columns if frame[name].null_count() < frame.height]
    return frame.select(kept or frame.columns)


def is_numeric(frame: pl.DataFrame) -> list[bool]:
    """Return for each column whether it holds numbers."""
    return [dtype.is_numeric() for dtype in frame.dtypes]


def cells(frame: pl.DataFrame) -> list[list[str]]:
    """Return every value of the frame as it is printed, row by row."""
    return [[cell(name, value) for name, value in zip(frame.columns, row, strict=True)] for row in frame.iter_rows()]


def cell(column: str, value: object) -> str:
    """Return one value as it is printed: scores with 3 decimals, z and percentiles with 1, null as "-"."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if column.endswith(("_z", "_percentile")):
            return f"{value:.1f}" if abs(value) < 999.95 else f"{value:.0f}"
        return f"{value:.3f}"
    return str(value)


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Return rows as lines of columns of equal width, two spaces apart; `right` says which are aligned to the right.

    >>> aligned([["layer", "model"], ["0", "a"]], right=[True, False])
    ['layer  model', '    0  a']
    """
    return ["  ".join(row).rstrip() for row in padded(rows, right)]


def padded(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[list[str]]:
    """Return rows with the cells of each column padded to one width; `right` says which are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [[c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)] for row in rows]
