"""Tables as text: aligned columns to read, JSON and CSV with all digits, Markdown and LaTeX to paste.

`encode` writes a data frame in one of these forms. `Terminal` says what a terminal can show: its width, and whether
scores get bars and colours.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

Rows = Sequence[Sequence[str]]  # the cells of a table, its titles first

_LATEX = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"})


def encode(frame: pl.DataFrame, form: str) -> bytes:
    """Return the content of a file as a table, json, csv, parquet, latex or markdown; all but parquet are text.

    JSON is an array of objects, one row per line; it has no NaN, which becomes null. The forms for people leave out
    columns that are empty.
    """
    if form == "parquet":
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        return buffer.getvalue()
    if form == "csv":
        return frame.write_csv().encode()
    if form == "json":
        rows = (json.dumps(row, ensure_ascii=False) for row in frame.fill_nan(None).iter_rows(named=True))
        return ("[\n" + ",\n".join(rows) + "\n]\n").encode()
    frame = without_empty_columns(frame)
    lines = {"table": aligned, "latex": _latex, "markdown": _markdown}[form]
    return ("\n".join(lines([frame.columns, *cells(frame)], is_numeric(frame))) + "\n").encode()


def _markdown(rows: Rows, right: Sequence[bool]) -> list[str]:
    """Return the lines of a pipe table."""
    head, *body = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    rule = ["---:" if numeric else ":---" for numeric in right]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *body)]


def _latex(rows: Rows, right: Sequence[bool]) -> list[str]:
    """Return the lines of a `tabular` with the rules of booktabs."""
    spec = "".join("r" if numeric else "l" for numeric in right)
    head, *body = (
        " & ".join(cell.replace("\\", r"\textbackslash ").translate(_LATEX) for cell in row) + r" \\" for row in rows
    )
    return [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]


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


def aligned(rows: Rows, right: Sequence[bool]) -> list[str]:
    """Return rows as lines of columns of equal width, two spaces apart; `right` says which are aligned to the right.

    >>> aligned([["layer", "model"], ["0", "a"]], right=[True, False])
    ['layer  model', '    0  a']
    """
    return ["  ".join(row).rstrip() for row in padded(rows, right)]


def padded(rows: Rows, right: Sequence[bool]) -> list[list[str]]:
    """Return rows with the cells of each column padded to one width; `right` says which are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [[c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)] for row in rows]


# ---- terminals

WIDTH = 100  # characters that a table has at most
BAR = 6  # characters of a full bar

# Escape sequences: cyan, yellow, faint, bold. Cyan and yellow are told apart with every kind of colour vision.
ABOVE, BELOW, FAINT, STRONG, _END = "\x1b[36m", "\x1b[33m", "\x1b[2m", "\x1b[1m", "\x1b[0m"

_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class Terminal:
    """How text is to be printed; by default plain, as for a file or a pipe."""

    width: int = WIDTH
    bars: bool = False
    colours: bool = False

    def paint(self, text: str, code: str) -> str:
        """Return text in the colour of an escape sequence, or as it is where there are no colours."""
        return f"{code}{text}{_END}" if self.colours and code and text.strip() else text


PLAIN = Terminal()


def folded(text: str, width: int) -> str:
    """Return text with the sentences that are wider than `width` broken at words; rows of tables stay whole.

    A row has two spaces between its cells. Coloured lines were fitted by whoever coloured them.

    >>> print(folded("z: standard deviations above the mean\\nlayer  symmetry  directionality  dominance", 30))
    z: standard deviations above
    the mean
    layer  symmetry  directionality  dominance
    """
    lines = []
    for line in text.split("\n"):
        words = line.lstrip(" ")
        if len(line) <= width or "  " in words or "\x1b" in line:
            lines.append(line)
        else:
            indent = " " * (len(line) - len(words))
            lines += wrap(
                words,
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def bar(value: float | None) -> str:
    """Return a bar whose length is |value| of `BAR` characters, to an eighth of a character.

    >>> [bar(0.5), bar(-1), bar(0.02), bar(None)]
    ['███   ', '██████', '▏     ', '      ']
    """
    eighths = round(min(abs(value or 0), 1) * BAR * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(BAR)


def colour(value: float | None, z: float | None) -> str:
    """Return the colour of a score: one above 0, another below, faint within two standard deviations of chance."""
    if value is None:
        return ""
    if z is not None and abs(z) < 2:
        return FAINT
    return ABOVE if value > 0 else BELOW
