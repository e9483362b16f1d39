"""Every score of a model as a layer × head map, with a choice of the score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attngeo.arrays import Floats
from attngeo.io.names import short_name
from attngeo.show.canvas import colour_limit
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import (
    DIVERGING,
    NULL_GREY,
    SEQUENTIAL,
    Panel,
    Trace,
    colour_bar,
    columns,
    figure,
    rounded,
    rounded_number,
    stack_name,
    whole_axis,
)

if TYPE_CHECKING:
    import polars as pl

READING = (
    "Each cell is one head: layers go up, the heads of a layer lie side by side. Blue is below 0 and red above 0; "
    "scores that cannot be negative go from dark to bright. The list above the map selects the score, and a click "
    "on a cell selects the head."
)
SCALES = "Each map has a colour scale of its own."
GAPS = "A cross marks a cell without a head."
UNDEFINED = "An empty cell is a head without a score, because its query, its key or their product is zero."
# Column → name and whether it has a sign.
SCORES = {
    "symmetry": ("symmetry", True),
    "symmetry_rope": ("symmetry over all offsets", True),
    "directionality": ("directionality", True),
    "directionality_rope": ("directionality over all offsets", True),
    "dominance": ("dominance", True),
    "self_attending": ("self-attending", True),
    "rank_symmetric": ("effective rank, symmetric part", False),
    "rank_skew": ("effective rank, skew part", False),
    "norm": ("norm", False),
    "symmetry_z": ("symmetry, z", True),
    "symmetry_rope_z": ("symmetry over all offsets, z", True),
    "directionality_z": ("directionality, z", True),
    "directionality_p": ("directionality, p-value", False),
    "directionality_rope_z": ("directionality over all offsets, z", True),
    "directionality_rope_p": ("directionality over all offsets, p-value", False),
    "dominance_z": ("dominance, z", True),
    "self_attending_z": ("self-attending, z", True),
    "symmetry_repaired": ("symmetry, re-paired null", True),
    "symmetry_rope_repaired": ("symmetry over all offsets, re-paired null", True),
    "directionality_repaired": ("directionality, re-paired null", True),
    "directionality_rope_repaired": ("directionality over all offsets, re-paired null", True),
    "symmetry_folded": ("symmetry, norm folded in", True),
    "directionality_folded": ("directionality, norm folded in", True),
}


def maps_section(frame: pl.DataFrame, *, id: str = "maps") -> Section:
    """Return one map per model and stack, with all scores that its heads have.

    frame: columns as in `ScoreTable.frame`

    >>> section = maps_section(attngeo.score(attngeo.bundled("encoder")).frame)
    >>> [button["label"] for button in section.figures[0].plotly["layout"]["updatemenus"][0]["buttons"]][:3]
    ['symmetry', 'directionality', 'dominance']
    """
    parts = frame.drop_nulls("head").partition_by("model", "stack", maintain_order=True)
    figures = [_map_figure(part, f"{id}-{number}") for number, part in enumerate(parts, 1)]
    readings = [READING]
    if len(parts) > 1:
        readings.append(SCALES)
    if any(gap_marks(head_grid(part, "layer")[1]) for part in parts):
        readings.append(GAPS)
    if any(part["symmetry"].null_count() for part in parts):
        readings.append(UNDEFINED)
    return Section(id, "Layer × head maps", " ".join(readings), tuple(figures))


def _map_figure(part: pl.DataFrame, id: str) -> PageFigure:
    model, stack = part.select("model", "stack").row(0)
    shown = [score for score in SCORES if part[score].null_count() < part.height]
    traces = []
    for number, score in enumerate(shown):
        name, signed = SCORES[score]
        values, labels = head_grid(part, score)
        traces.append(heat_map(values, labels, name, signed) | {"visible": number == 0})
    marks = gap_marks(labels)
    rows, heads = len(traces[0]["z"]), len(traces[0]["z"][0])
    panel = Panel(
        stack_name(model, stack),
        traces + marks,
        whole_axis("head", heads),
        whole_axis("layer", rows, range=[-0.5, rows - 0.5]),
    )
    description = figure(
        [panel],
        height=min(560, max(200, 22 * rows)),
        legend=False,
        updatemenus=[_choice([SCORES[s][0] for s in shown], len(marks))],
    )
    table = columns(part.select("model", "stack", "layer", "head", *shown).iter_rows(named=True))
    label = f"Scores of each head of {short_name(model)}, {stack}, as a layer by head map."
    return PageFigure(id, label, description, table)


def head_grid(rows: pl.DataFrame, column: str) -> tuple[Floats, list[list[str | None]]]:
    """Return a column of heads as [layers, heads], NaN where there is no value, and the labels of the heads."""
    layers, heads = rows["layer"].to_numpy(), rows["head"].to_numpy()
    shape = int(layers.max()) + 1, int(heads.max()) + 1
    values = np.full(shape, np.nan)
    values[layers, heads] = rows[column].cast(float).fill_null(np.nan).to_numpy()
    labels: list[list[str | None]] = [[None] * shape[1] for _ in range(shape[0])]
    for layer, head in zip(layers.tolist(), heads.tolist(), strict=True):
        labels[layer][head] = f"L{layer}H{head}"
    return values, labels


def heat_map(values: Floats, labels: Sequence[Sequence[str | None]], name: str, signed: bool) -> Trace:
    """Return a heat map of values [layers, heads]; the colours of a score with a sign are symmetric about 0."""
    top = colour_limit(values)
    low = -top if signed else float(values[np.isfinite(values)].min(initial=0.0))
    return {
        "type": "heatmap",
        "z": rounded(values),
        "customdata": [list(row) for row in labels],
        "hovertemplate": "%{customdata}: %{z:.4~g}<extra></extra>",
        "hoverongaps": False,
        "colorscale": DIVERGING if signed else SEQUENTIAL,
        "zmin": rounded_number(low),
        "zmax": rounded_number(top),
        "colorbar": colour_bar(""),
        "xgap": 1,
        "ygap": 1,
        "name": name,
    }


def gap_marks(labels: Sequence[Sequence[str | None]]) -> list[Trace]:
    """Return crosses on the cells of a map that have no head; without them such a cell looks like a score of 0."""
    gaps = [(head, layer) for layer, row in enumerate(labels) for head, label in enumerate(row) if label is None]
    if not gaps:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [head for head, _ in gaps],
            "y": [layer for _, layer in gaps],
            "marker": {"symbol": "x-thin", "size": 7, "line": {"color": NULL_GREY, "width": 1}},
            "hovertemplate": "no head<extra></extra>",
            "name": "no head",
        }
    ]


def _choice(names: Sequence[str], always: int) -> dict[str, object]:
    """Return a menu that shows one of several traces, and the `always` traces after them with each."""
    buttons = [
        {
            "label": name,
            "method": "restyle",
            "args": [{"visible": [other == name for other in names] + [True] * always}],
        }
        for name in names
    ]
    return {
        "type": "dropdown",
        "buttons": buttons,
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        "pad": {"b": 30},
        "showactive": True,
        "active": 0,
        "bgcolor": "rgba(128,128,128,0.15)",
        "bordercolor": "#808080",
    }
