"""Scores as text for the terminal: per model and stack a table, a verdict and medians, then a legend of the columns."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from attngeo.show.score_legend import SCORE_LEGEND, legend
from attngeo.show.tables import aligned, cells, is_numeric, padded, without_empty_columns
from attngeo.show.terminal import PLAIN, STRONG, Terminal, bar, colour

if TYPE_CHECKING:
    import polars as pl

    from attngeo.weights.scoring.verdict import Verdict

_SCORES = ("symmetry", "directionality")
_MEDIANS = ("symmetry", "symmetry_rope", "directionality", "dominance")
_BARS = ("symmetry", "symmetry_rope", "directionality")  # scores between −1 and 1

# Column → its title and its rank; a table that is too wide loses the columns of the highest rank first.
_COLUMNS = {
    "layer": ("layer", 0),
    "head": ("head", 0),
    "symmetry": ("symmetry", 0),
    "symmetry_z": ("z", 1),
    "symmetry_published": ("published", 0),
    "symmetry_rope": ("symmetry_rope", 0),
    "symmetry_rope_z": ("z", 1),
    "directionality": ("directionality", 0),
    "directionality_z": ("z", 3),
    "directionality_published": ("published", 0),
    "dominance": ("dominance", 2),
    "dominance_z": ("z", 3),
}


def score_report(
    frame: pl.DataFrame,
    summary: pl.DataFrame,
    verdicts: Sequence[Verdict],
    terminal: Terminal = PLAIN,
    every_column: bool = False,
) -> str:
    """Return the rows, the verdict and the medians of each model and stack, then what the columns mean.

    frame:        columns as in `ScoreTable.frame`, optionally with those that `compare_with_published` adds
    summary:      as `ScoreTable.summary` returns it
    verdicts:     as `verdicts` returns them
    terminal:     less important columns are left out where a row would be wider
    every_column: print all columns under their own names, however wide
    """
    sections: list[str] = []
    titles: set[str] = set()
    sentences = {(verdict.model, verdict.stack): verdict.sentence for verdict in verdicts}
    for part in frame.partition_by("model", "stack", maintain_order=True):
        model, stack = part.select("model", "stack").row(0)
        shown = _all_columns(part) if every_column else _fitting_columns(part, terminal)
        titles |= set(shown.columns if every_column else (_COLUMNS[name][0] for name in shown.columns))
        verdict = [terminal.paint(line, STRONG) for line in wrap(sentences.get((model, stack), ""), terminal.width)]
        medians = _median_lines(summary.filter(summary["model"] == model, summary["stack"] == stack), terminal.width)
        paragraphs = [
            [f"{model}  {stack}", *_table_lines(shown, terminal, every_column), *_notes(part, every_column)],
            [*verdict, *medians],
        ]
        sections += ["\n".join(lines) + "\n" for lines in paragraphs if lines]
    return "\n".join([*sections, *legend(titles), ""])


def published_report(frame: pl.DataFrame) -> str:
    """Return rows of the published tables, as `list_published` returns them, then what the columns mean.

    Modality and family stand above the models of a family, and cautions are numbered, so that rows stay narrow.
    """
    cautions: list[str] = frame["caution"].drop_nulls().unique(maintain_order=True).to_list()
    shown = ["hub_id", "stack", *(name for name in ("layers", "layer") if name in frame.columns), *_SCORES]
    titles = [*shown, "size", *(["note"] if cautions else [])]
    rows = [
        [*texts, _size(count), *([f"[{cautions.index(caution) + 1}]" if caution else ""] if cautions else [])]
        for texts, count, caution in zip(cells(frame.select(shown)), frame["parameters"], frame["caution"], strict=True)
    ]
    title, *lines = aligned([titles, *rows], right=[*is_numeric(frame.select(shown)), True, False][: len(titles)])
    families = list(frame.select("modality", "family").iter_rows())
    for i in reversed(range(len(families))):
        if i == 0 or families[i] != families[i - 1]:
            lines.insert(i, "  ".join(families[i]))
    text = [title, *lines, "", *SCORE_LEGEND]
    if "layers" in shown:
        text.append("layers: number of layers in the stack; the scores are medians over them")
    text.append("size: number of parameters")
    if cautions:
        text.append("note: a caution, why the published scores are not those of the model")
        text += [f"[{i}] {caution}" for i, caution in enumerate(cautions, 1)]
    return "\n".join([*text, ""])


def _size(parameters: int) -> str:
    """Return a number of parameters in millions or billions, in at most four characters."""
    if parameters < 999.5e6:
        return f"{parameters / 1e6:.0f}M"
    return f"{parameters / 1e9:.{1 if parameters < 9.95e9 else 0}f}B"


def _median_lines(summary: pl.DataFrame, width: int) -> list[str]:
    """Return one line for the layers and one for the heads of a stack: median [quartiles] of the scores that fit."""
    scores = [score for score in _MEDIANS if f"{score}_median" in summary.columns]
    scores = [score for score in scores if summary[f"{score}_median"].null_count() < summary.height]
    while scores:
        rows = [["median [quartiles]", *scores]]
        for row in summary.iter_rows(named=True):
            quartiles = (_quartiles(*(row[f"{score}_{part}"] for part in ("median", "q25", "q75"))) for score in scores)
            rows.append([f"{row['count']} {row['level']}{'s' if row['count'] > 1 else ''}", *quartiles])
        lines = aligned(rows, right=[False] * len(rows[0]))
        if max(map(len, lines)) <= width:
            return lines
        scores.pop()
    return []


def _quartiles(median: float | None, low: float | None, high: float | None) -> str:
    return "-" if median is None else f"{median:6.3f} [{low:6.3f}, {high:6.3f}]"


def _all_columns(part: pl.DataFrame) -> pl.DataFrame:
    """Return all columns with values; model and stack stand above the table, `--published` repeats its notes."""
    return without_empty_columns(part).drop("model", "stack", "population", "published_model", "caution", strict=False)


def _fitting_columns(part: pl.DataFrame, terminal: Terminal) -> pl.DataFrame:
    """Return the columns to show: those with values, less the least important ones until the rows fit the terminal."""
    part = without_empty_columns(part.select(name for name in _COLUMNS if name in part.columns))
    for rank in (3, 2, 1):
        if max(map(len, _table_lines(part, Terminal(terminal.width)))) <= terminal.width:
            break
        part = part.select(name for name in part.columns if _COLUMNS[name][1] < rank)
    return part


def _table_lines(part: pl.DataFrame, terminal: Terminal, own_names: bool = False) -> list[str]:
    """Return a line of titles and a line per row, with bars where there is room for them, and with colours."""
    titles = part.columns if own_names else [_COLUMNS[name][0] for name in part.columns]
    rows = padded([titles, *cells(part)], right=is_numeric(part))
    if terminal.bars and not own_names:
        barred = [list(row) for row in rows]
        for column, name in enumerate(part.columns):
            if name in _BARS:
                barred[0][column] = titles[column].ljust(13)
                for row, value in zip(barred[1:], part[name], strict=True):
                    row[column] = f"{row[column].strip():>6} {bar(value)}".ljust(len(barred[0][column]))
        if max(len("  ".join(row)) for row in barred) <= terminal.width:
            rows = barred
    if terminal.colours:
        for column, name in enumerate(part.columns):
            if f"{name}_z" not in part.columns and name not in _SCORES:
                continue
            z = part[f"{name}_z"] if f"{name}_z" in part.columns else [None] * part.height
            for row, value, distance in zip(rows[1:], part[name], z, strict=True):
                row[column] = terminal.paint(row[column], colour(value, distance))
    return ["  ".join(row).rstrip() for row in rows]


def _notes(part: pl.DataFrame, every_column: bool) -> list[str]:
    """Return what holds for all rows of a stack, to be printed once below them."""
    notes = []
    if every_column:
        empty = [name for name in part.columns if name != "head" and part[name].null_count() == part.height]
        if empty:
            notes += wrap(f"without values: {', '.join(empty)}", 100)
    if part["qk_norm"].any():
        notes.append("Queries and keys are normalised before their product: the form is only part of the score")
    if "population" in part.columns:
        if part["published_model"].null_count() < part.height:
            notes.append(f"published: {part['published_model'].drop_nulls()[0]}")
        notes.extend(f"caution: {text}" for text in part["caution"].drop_nulls().unique(maintain_order=True))
        if part["population"][0] is not None:
            percentiles = [
                f"{score} {part[f'model_{score}_percentile'][0]:.0f}"
                for score in _SCORES
                if part[f"model_{score}_percentile"][0] is not None
            ]
            notes.append(f"percentile of the median layer among {part['population'][0]}: {', '.join(percentiles)}")
    return notes
