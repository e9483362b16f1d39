"""Scores for people: a table for each model and stack, then their medians one under the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.show.tables import aligned, cells, filled, numbers

if TYPE_CHECKING:
    import polars as pl

# In the order shown. The last number says what goes first where the terminal is too narrow.
_COLUMNS = {
    "layer": ("layer", 0),
    "head": ("head", 0),
    "symmetry": ("symmetry", 0),
    "symmetry_z": ("z", 1),
    "symmetry_repaired": ("re-paired", 2),
    "symmetry_folded": ("folded", 3),
    "symmetry_published": ("published", 0),
    "directionality": ("directionality", 0),
    "directionality_z": ("z", 3),
    "directionality_p": ("p", 1),
    "directionality_repaired": ("re-paired", 2),
    "directionality_folded": ("folded", 3),
    "directionality_published": ("published", 0),
}


def report(frame: pl.DataFrame, summary: pl.DataFrame, width: int | None = None) -> str:
    """The rows of every model and stack, then `summary`; no row wider than `width` if columns can be spared.

    frame     rows as in ScoreTable.frame, perhaps with the columns of `published.beside`
    summary   as ScoreTable.summary gives it
    """
    parts = frame.partition_by("model", "stack", maintain_order=True)
    sections = [f"{part['model'][0]}  {part['stack'][0]}\n{_rows(part, width)}\n{_notes(part)}" for part in parts]
    return "\n".join([*sections, _medians(summary)])


def _medians(summary: pl.DataFrame) -> str:
    """One line for the layers and one for the heads of each stack: median [quartiles]."""
    if summary.height == 0:
        return "nothing to summarise: only self-attention has a median\n"
    scores = ("symmetry", "directionality")
    titles = ["median [quartiles] over", "stack", *scores, "model"]
    body = [
        [
            f"{row['count']} {row['level']}{'s' if row['count'] > 1 else ''}",
            row["stack"],
            *(_spread(*(row[f"{score}_{part}"] for part in ("median", "q25", "q75"))) for score in scores),
            row["model"],
        ]
        for row in summary.iter_rows(named=True)
    ]
    return "\n".join(aligned([titles, *body], right=[False] * len(titles))) + "\n"


def _spread(median: float | None, low: float | None, high: float | None) -> str:
    return "-" if median is None else f"{median:6.3f} [{low:6.3f}, {high:6.3f}]"


def _rows(part: pl.DataFrame, width: int | None) -> str:
    part = filled(part.select(name for name in _COLUMNS if name in part.columns))
    for spare in (3, 2, 1):
        lines = _lines(part)
        if width is None or max(map(len, lines)) <= width:
            break
        part = part.select(name for name in part.columns if _COLUMNS[name][1] < spare)
    return "\n".join(_lines(part))


def _lines(part: pl.DataFrame) -> list[str]:
    titles = [_COLUMNS[name][0] for name in part.columns]
    return aligned([titles, *cells(part)], right=numbers(part))


def _notes(part: pl.DataFrame) -> str:
    """What is the same for all rows, said once under them."""
    notes = []
    if part["qk_norm"].any():
        notes.append("queries and keys are normalised before their product: the form is only part of the score")
    if "population" in part.columns:
        if part["published_model"].null_count() < part.height:
            notes.append(f"published: {part['published_model'].drop_nulls()[0]}")
        notes.extend(f"caution: {text}" for text in part["caution"].drop_nulls().unique(maintain_order=True))
        if part["population"][0] is not None:
            places = [
                f"{score} {part[f'model_{score}_percentile'][0]:.0f}"
                for score in ("symmetry", "directionality")
                if part[f"model_{score}_percentile"][0] is not None
            ]
            notes.append(f"percentile of the median layer among {part['population'][0]}: {', '.join(places)}")
    return "".join(f"{note}\n" for note in notes)
