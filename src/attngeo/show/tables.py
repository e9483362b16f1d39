"""A frame as text: aligned for people, json and csv with every column and digit, markdown and latex to paste."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

FORMATS = ("table", "json", "csv", "parquet", "latex", "markdown")

Cells = list[list[str]]

_LATEX = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"})


def encode(frame: pl.DataFrame, form: str) -> bytes:
    """The frame in one of FORMATS; only parquet is not text."""
    if form == "parquet":
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        return buffer.getvalue()
    return {"table": as_text, "json": as_json, "csv": as_csv, "latex": as_latex, "markdown": as_markdown}[form](
        frame
    ).encode()


def as_json(frame: pl.DataFrame) -> str:
    """An array of rows, one to a line, keys the column names."""
    rows = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in frame.iter_rows(named=True))
    return "[\n" + ",\n".join(rows) + "\n]\n"


def as_csv(frame: pl.DataFrame) -> str:
    """Every column, null as nothing."""
    return frame.write_csv()


def as_text(frame: pl.DataFrame) -> str:
    """Aligned columns, numbers to the right; columns with nothing in them are left out."""
    frame = filled(frame)
    return "\n".join(aligned([frame.columns, *cells(frame)], right=numbers(frame))) + "\n"


def as_markdown(frame: pl.DataFrame) -> str:
    """A pipe table; columns with nothing in them are left out."""
    frame = filled(frame)
    rule = ["---:" if right else ":---" for right in numbers(frame)]
    body = [[cell.replace("|", r"\|") for cell in row] for row in cells(frame)]
    return "".join(f"| {' | '.join(row)} |\n" for row in [frame.columns, rule, *body])


def as_latex(frame: pl.DataFrame) -> str:
    """A booktabs tabular; columns with nothing in them are left out."""
    frame = filled(frame)
    spec = "".join("r" if right else "l" for right in numbers(frame))
    head, *body = (
        " & ".join(cell.replace("\\", r"\textbackslash ").translate(_LATEX) for cell in row) + r" \\"
        for row in [frame.columns, *cells(frame)]
    )
    lines = [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def filled(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame without the columns that are null in every row."""
    return frame.select(name for name in frame.columns if frame[name].null_count() < frame.height)


def numbers(frame: pl.DataFrame) -> list[bool]:
    """Which columns hold numbers."""
    return [dtype.is_numeric() for dtype in frame.dtypes]


def cells(frame: pl.DataFrame) -> Cells:
    """Every value as a person would read it."""
    return [[cell(name, value) for name, value in zip(frame.columns, row, strict=True)] for row in frame.iter_rows()]


def cell(name: str, value: object) -> str:
    """One value: scores to 3 digits, z and percentiles to 1, "-" where there is none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}" if name.endswith(("_z", "_percentile")) else f"{value:.3f}"
    return str(value)


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Rows as lines of equal columns, two spaces between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in rows
    ]
