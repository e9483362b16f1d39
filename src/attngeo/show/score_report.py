"""Scores as text for the terminal: a table per model and stack, their medians, and a legend of the columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.show.tables import aligned, as_text, cells, is_numeric, without_empty_columns

if TYPE_CHECKING:
    import polars as pl

_SCORES = ("symmetry", "directionality")

# Column → its title and its rank; a terminal that is too narrow loses the columns of the highest rank first.
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

SCORE_LEGEND = (
    "symmetry: 1 for a symmetric form, −1 for a skew-symmetric one, 1/d on average for random weights",
    "directionality: below 0 columns (the context token) dominate, above 0 rows (the predicted token)",
)
# Title of a column → its meaning; printed for the columns that are shown.
_LEGEND = {
    "z": "standard deviations above the mean for independent Gaussian weights of the same shape",
    "p": "two-sided p-value of the directionality against the same Gaussian weights",
    "re-paired": "a control, the same queries with keys of another key head or layer",
    "folded": "the score with the normalisation before the attention folded into the weights",
    "published": "the score in the tables of arXiv 2502.10927",
}


def score_report(frame: pl.DataFrame, summary: pl.DataFrame, width: int | None = None) -> str:
    """Return the rows of each model and stack, then the summary, then what the columns mean.

    frame:   columns as in `ScoreTable.frame`, optionally with those that `compare_with_published` adds
    summary: as `ScoreTable.summary` returns it
    width:   width of the terminal; less important columns are left out where a row would be wider
    """
    sections: list[str] = []
    titles: dict[str, None] = {}
    for part in frame.partition_by("model", "stack", maintain_order=True):
        columns = _fitting_columns(part, width)
        titles |= dict.fromkeys(_COLUMNS[name][0] for name in columns)
        lines = _table_lines(part.select(columns))
        sections.append("\n".join([f"{part['model'][0]}  {part['stack'][0]}", *lines, *_notes(part), ""]))
    legend = [*SCORE_LEGEND, *(f"{title}: {meaning}" for title, meaning in _LEGEND.items() if title in titles)]
    return "\n".join([*sections, *_median_lines(summary), "", *legend, ""])


def published_report(frame: pl.DataFrame) -> str:
    """Return rows of the published tables, as `list_published` returns them, then what the columns mean."""
    legend = [*SCORE_LEGEND]
    if "layers" in frame.columns:
        legend.append("layers: number of layers in the stack; the scores are medians over them")
    if frame["caution"].null_count() < frame.height:
        legend.append("caution: why the published scores are not those of the model; - where no problem is known")
    return "\n".join([as_text(frame), *legend, ""])


def _median_lines(summary: pl.DataFrame) -> list[str]:
    """Return one line for the layers and one for the heads of each stack: median [quartiles]."""
    if summary.height == 0:
        return ["nothing to summarise: medians are taken over self-attention only"]
    titles = ["median [quartiles] over", "stack", *_SCORES, "model"]
    body = [
        [
            f"{row['count']} {row['level']}{'s' if row['count'] > 1 else ''}",
            row["stack"],
            *(_quartiles(*(row[f"{score}_{part}"] for part in ("median", "q25", "q75"))) for score in _SCORES),
            row["model"],
        ]
        for row in summary.iter_rows(named=True)
    ]
    return aligned([titles, *body], right=[False] * len(titles))


def _quartiles(median: float | None, low: float | None, high: float | None) -> str:
    return "-" if median is None else f"{median:6.3f} [{low:6.3f}, {high:6.3f}]"


def _fitting_columns(part: pl.DataFrame, width: int | None) -> list[str]:
    """Return the columns to show: those with values, less the least important ones until the rows fit `width`."""
    part = without_empty_columns(part.select(name for name in _COLUMNS if name in part.columns))
    for rank in (3, 2, 1):
        if width is None or max(map(len, _table_lines(part))) <= width:
            break
        part = part.select(name for name in part.columns if _COLUMNS[name][1] < rank)
    return part.columns


def _table_lines(part: pl.DataFrame) -> list[str]:
    titles = [_COLUMNS[name][0] for name in part.columns]
    return aligned([titles, *cells(part)], right=is_numeric(part))


def _notes(part: pl.DataFrame) -> list[str]:
    """Return what holds for all rows of a stack, to be printed once below them."""
    notes = []
    if part["qk_norm"].any():
        notes.append("queries and keys are normalised before their product: the form is only part of the score")
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
