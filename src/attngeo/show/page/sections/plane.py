"""Models on the symmetry–directionality plane, with the published models behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.io.names import short_name
from attngeo.show.canvas import stack_colour
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import (
    Panel,
    Trace,
    axis,
    columns,
    escaped,
    figure,
    rounded,
    rounded_number,
    stack_name,
)

if TYPE_CHECKING:
    import polars as pl

READING = (
    "Each small dot is a published model, placed by the median symmetry and the median directionality of its "
    "layers: encoders lie above decoders, with some overlap. The large symbols are the models of this report; their "
    "bars reach from the first to the third quartile of their layers."
)
_SYMBOLS = ("diamond", "square", "star", "triangle-up", "cross", "hexagon", "pentagon")


def plane_section(summary: pl.DataFrame, published: pl.DataFrame, *, id: str = "plane") -> Section:
    """Return one figure with the models of `summary` before those of `published`.

    summary:   as `ScoreTable.summary` returns it
    published: as `list_published` returns it, one row per model and stack

    >>> from attngeo.weights.scoring import list_published
    >>> table = attngeo.score(attngeo.bundled("encoder"))
    >>> (figure,) = plane_section(table.summary(), list_published(caution=False)).figures
    >>> [trace["name"] for trace in figure.plotly["data"]]
    ['published encoder', 'published decoder', 'bundled/encoder']
    """
    layers = summary.filter(summary["level"] == "layer")
    traces = [_published(part) for part in published.partition_by("stack", maintain_order=True)]
    traces += [_model(row, number) for number, row in enumerate(layers.iter_rows(named=True))]
    panel = Panel("median layer of each model", traces, axis("directionality"), axis("symmetry"))
    rows = [_row(row["model"], row["stack"], row, "_median") for row in layers.iter_rows(named=True)]
    rows += [_row(row["hub_id"], row["stack"], row, "") for row in published.iter_rows(named=True)]
    names = ", ".join(short_name(model) for model in layers["model"].unique(maintain_order=True))
    label = f"Median symmetry against median directionality of {names} and of {published.height} published models."
    return Section(
        id,
        "Among published models",
        READING,
        (PageFigure(f"{id}-1", label, figure([panel], height=440), columns(rows)),),
    )


def _published(part: pl.DataFrame) -> Trace:
    stack = part["stack"][0]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": rounded(part["directionality"].to_list()),
        "y": rounded(part["symmetry"].to_list()),
        "text": [escaped(name) for name in part["hub_id"].to_list()],
        "hovertemplate": "%{text}<br>symmetry %{y:.3f}, directionality %{x:.3f}<extra></extra>",
        "marker": {"color": stack_colour(stack), "size": 6, "opacity": 0.55},
        "name": f"published {escaped(stack)}",
    }


def _model(row: dict[str, object], number: int) -> Trace:
    stack = str(row["stack"])
    name = stack_name(str(row["model"]), stack)
    colour = stack_colour(stack)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [_number(row["directionality_median"])],
        "y": [_number(row["symmetry_median"])],
        "error_x": _bars(row, "directionality", colour),
        "error_y": _bars(row, "symmetry", colour),
        "hovertemplate": "symmetry %{y:.3f}, directionality %{x:.3f}",
        "marker": {
            "color": colour,
            "size": 13,
            "symbol": _SYMBOLS[number % len(_SYMBOLS)],
            "line": {"width": 1.5, "color": "#ffffff"},
        },
        "name": name,
    }


def _bars(row: dict[str, object], score: str, colour: str) -> dict[str, object]:
    """Return error bars from the first to the third quartile."""
    median, low, high = (row[f"{score}_{name}"] for name in ("median", "q25", "q75"))
    if not (isinstance(median, float) and isinstance(low, float) and isinstance(high, float)):
        return {"visible": False}
    return {
        "type": "data",
        "symmetric": False,
        "array": [rounded_number(high - median)],
        "arrayminus": [rounded_number(median - low)],
        "color": colour,
        "thickness": 1.5,
        "width": 4,
    }


def _row(model: str, stack: str, row: dict[str, object], ending: str) -> dict[str, object]:
    published = not ending
    scores = {score: row[f"{score}{ending}"] for score in ("symmetry", "directionality")}
    return {"model": model, "stack": stack, **scores, "published": published}


def _number(value: object) -> float | None:
    return rounded_number(value) if isinstance(value, float) else None
