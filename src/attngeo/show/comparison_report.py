"""Comparisons of models as text: the answers in words, then the layers and heads that changed most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.show.tables import aligned, cell, is_numeric, without_empty_columns
from attngeo.show.terminal import WIDTH

if TYPE_CHECKING:
    import polars as pl

    from attngeo.applications.compare.comparison import ModelComparison
    from attngeo.applications.compare.model_map import ModelMap

_TITLES = {
    "stack": "stack",
    "layer": "layer",
    "head": "head",
    "change": "change",
    "cosine": "cosine",
    "match": "match",
    "symmetry": "symmetry",
    "symmetry_change": "Δ",
    "directionality": "directionality",
    "directionality_change": "Δ",
    "norm": "norm",
    "norm_change": "Δ",
}
_LEGEND = (
    "change: ‖M_A − M_B‖/‖M_A‖ of the form; cosine: of the two forms",
    "match: the head of the second model that fits best; Δ: score of the second model − score of the first",
)
HEADS = 20  # heads in the table


def comparison_report(comparison: ModelComparison, heads: int | None = HEADS, width: int = WIDTH) -> str:
    """Return the answers to the three questions, then the layers and the heads that changed most.

    heads: how many heads are listed; None: all
    width: characters of a row; norms are left out where it would be wider
    """
    lines = [f"{comparison.a} compared with {comparison.b}", "", *comparison.words()]
    related = comparison.related
    if related.cosine is not None and not related.aligned:
        lines.append(f"Mean matched |cosine| of all layers and heads: {related.cosine:.4f}.")
    if related.control is not None:
        lines.append(f"Control, every layer paired with the next one: {related.control:.3g}.")
    if comparison.changes.height and not comparison.identical:
        of_heads = comparison.sorted()
        shown = of_heads if heads is None else of_heads.head(heads)
        lines += ["", "layers, by change", *_table(comparison.sorted(heads=False), width)]
        if shown.height:
            lines += ["", f"heads, by change ({shown.height} of {of_heads.height})", *_table(shown, width)]
        lines += ["", *_LEGEND]
    return "\n".join([*lines, ""])


def model_map_report(models: ModelMap) -> str:
    """Return the distance matrix of several models in the order of the dendrogram, and the relation of each pair."""
    order, distances = models.order, models.distances
    numbers = [str(i + 1) for i in range(len(order))]
    rows = [[numbers[at], *(f"{distances[i, j]:.4f}" for j in order), models.names[i]] for at, i in enumerate(order)]
    table = aligned([["", *numbers, "model"], *rows], right=[True] * (len(order) + 1) + [False])
    place = {i: at + 1 for at, i in enumerate(order)}
    verdicts = [
        "{}, {}: {}".format(*sorted((place[pair.a], place[pair.b])), pair.verdict)
        for pair in sorted(models.pairs, key=lambda pair: sorted((place[pair.a], place[pair.b])))
        if pair.verdict
    ]
    return "\n".join([models.measure, *table, "", *verdicts, *models.notes, ""])


def _table(frame: pl.DataFrame, width: int) -> list[str]:
    columns = [name for name in _TITLES if name in frame.columns]
    if frame["stack"].n_unique() == 1:
        columns.remove("stack")
    whole, frame = frame, without_empty_columns(frame.select(columns))
    body = [[_cell(name, value) for name, value in zip(frame.columns, row, strict=True)] for row in frame.iter_rows()]
    lines = aligned([[_TITLES[name] for name in frame.columns], *body], right=is_numeric(frame))
    if max(map(len, lines)) > width and "norm" in frame.columns:
        return _table(whole.drop("norm", "norm_change"), width)
    return lines


def _cell(name: str, value: object) -> str:
    """Return a value as it is printed; small changes need significant digits."""
    return f"{value:.3g}" if name == "change" and isinstance(value, float) else cell(name, value)
