"""Symmetry and directionality by layer and head, each against the null of forms of its own shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.io.names import short_name
from attngeo.show.canvas import stack_colour
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import (
    BAND,
    NULL_GREY,
    Panel,
    Trace,
    axis,
    columns,
    figure,
    legend_entry,
    null_band,
    null_range,
    rounded,
    stack_name,
    whole_axis,
)

if TYPE_CHECKING:
    import polars as pl

    from attngeo.weights.scoring.score_table import LayerNulls, NullLevel

READING = (
    "The line joins the layers of a stack, and each dot is one head. 1 means symmetric and −1 skew-symmetric; a "
    "negative directionality means that columns (the context token) dominate, a positive one that rows (the "
    "predicted token) do. The grey band holds 95% of layers with random weights, the space between the dotted lines "
    "95% of such heads: what lies outside is unlikely to be chance."
)
ROTARY_READING = (
    " Queries and keys of this model are rotated by their positions: “over all offsets” averages over all offsets "
    "(position of the key minus that of the query), the plain score is that at offset 0."
)
# Column → title
TITLES = {
    "symmetry": "symmetry",
    "symmetry_rope": "symmetry over all offsets",
    "directionality": "directionality",
    "directionality_rope": "directionality over all offsets",
}


def scores_section(frame: pl.DataFrame, layers: LayerNulls, heads: LayerNulls, *, id: str = "scores") -> Section:
    """Return a figure per score, with one panel per model and stack.

    frame:  columns as in `ScoreTable.frame`
    layers: the nulls of the layers, as `layer_nulls` returns them
    heads:  the nulls of the heads, as `head_nulls` returns them

    >>> from attngeo.weights.scoring import head_nulls, layer_nulls
    >>> frame = attngeo.score(attngeo.bundled("encoder")).frame
    >>> section = scores_section(frame, layer_nulls(frame), head_nulls(frame))
    >>> [figure.id for figure in section.figures]
    ['scores-symmetry', 'scores-directionality']
    """
    shown = [score for score in TITLES if frame[score].null_count() < frame.height]
    figures = tuple(_score_figure(frame, score, layers, heads, id) for score in shown)
    rotary = any(score.endswith("_rope") for score in shown)
    return Section(id, "Scores by layer", READING + ROTARY_READING * rotary, figures)


def _score_figure(frame: pl.DataFrame, score: str, layers: LayerNulls, heads: LayerNulls, id: str) -> PageFigure:
    panels, rows, models = [], [], []
    for part in frame.partition_by("model", "stack", maintain_order=True):
        part = part.drop_nulls(score).sort("layer", "head", nulls_last=False)
        if part.height == 0:
            continue
        key: tuple[str, str] = part.select("model", "stack").row(0)
        levels = [nulls.get(key, {}).get(score) for nulls in (layers, heads)]
        panels.append(_panel(part, score, *levels))
        models.append(short_name(key[0]))
        names = ["model", "stack", "layer", "head", score, f"{score}_z"]
        for row in part.select(names).iter_rows(named=True):
            level = levels[row["head"] is not None]
            chance = {"chance_mean": level and level.mean, "chance_std": level and level.std}
            rows.append(row | chance)
    label = f"{TITLES[score].capitalize()} of each layer and head of {', '.join(models)}, with chance levels."
    legend = [
        legend_entry("layer", "layers", mode="lines+markers", line={"color": NULL_GREY}),
        legend_entry("head", "heads", mode="markers", marker={"color": NULL_GREY, "size": 5}),
        legend_entry(
            "random layers, 95%", "layer null", mode="lines", fill="toself", fillcolor=BAND, line={"width": 0}
        ),
        legend_entry("random heads, 95%", "head null", mode="lines", line={"color": NULL_GREY, "dash": "dot"}),
    ]
    description = figure(panels, same_y=True, beside=2 if len(panels) > 2 else 1)
    description["data"] += legend
    return PageFigure(f"{id}-{score.replace('_', '-')}", label, description, columns(rows))


def _panel(part: pl.DataFrame, score: str, of_layers: NullLevel | None, of_heads: NullLevel | None) -> Panel:
    import polars as pl

    model, stack = part.select("model", "stack").row(0)
    forms, heads = part.filter(pl.col("head").is_null()), part.drop_nulls("head")
    last = int(part["layer"].max())  # type: ignore[arg-type]
    span = (-0.5, last + 0.5)
    colour = stack_colour(stack)
    hidden = {"showlegend": False}
    traces: list[Trace] = []
    if of_layers is not None:
        level = (of_layers.mean, of_layers.std)
        traces.append(null_band(span, level, "random layers, 95%", legendgroup="layer null", **hidden))
    if of_heads is not None and of_heads.std is not None and heads.height:
        traces.append(_dotted_lines(span, null_range((of_heads.mean, of_heads.std))))
    if heads.height:
        count = int(heads["head"].max()) + 1  # type: ignore[arg-type]
        beside = ((heads["head"] + 0.5) / count - 0.5) * 0.7  # the heads of a layer lie side by side
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": rounded((heads["layer"] + beside).to_list()),
                "y": rounded(heads[score].to_list()),
                "customdata": [f"L{layer}H{head}" for layer, head in heads.select("layer", "head").rows()],
                "text": _z_texts(heads, score),
                "hovertemplate": "%{customdata}: %{y:.3f}%{text}<extra></extra>",
                "marker": {"color": colour, "size": 6, "opacity": 0.75},
                "name": "head",
                "legendgroup": "heads",
                **hidden,
            }
        )
    traces.append(
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": forms["layer"].to_list(),
            "y": rounded(forms[score].to_list()),
            "text": _z_texts(forms, score),
            "hovertemplate": "layer %{x}: %{y:.3f}%{text}<extra></extra>",
            "line": {"color": colour, "width": 2},
            "marker": {"color": colour, "size": 7},
            "name": "layer",
            "legendgroup": "layers",
            **hidden,
        }
    )
    x = whole_axis("layer", last + 1, range=list(span))
    return Panel(stack_name(model, stack), traces, x, axis(TITLES[score]))


def _dotted_lines(span: tuple[float, float], bounds: tuple[float, float]) -> Trace:
    low, high = rounded(bounds)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*span, None, *span],
        "y": [low, low, None, high, high],
        "line": {"color": NULL_GREY, "width": 1.2, "dash": "dot"},
        "name": "random heads, 95%",
        "legendgroup": "head null",
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _z_texts(rows: pl.DataFrame, score: str) -> list[str]:
    """Return what hovering adds to the score of each row: its z, where known."""
    return ["" if z is None else f", z {z:.1f}" for z in rows[f"{score}_z"].to_list()]
