"""The distances of several models, as a matrix, a dendrogram and a map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attngeo.io.names import short_name
from attngeo.show.canvas import COLOURS
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import (
    NULL_GREY,
    SEQUENTIAL,
    Panel,
    Trace,
    axis,
    colour_bar,
    columns,
    figure,
    in_lines,
    rounded,
)

if TYPE_CHECKING:
    from attngeo.applications.compare.model_map import ModelMap

READING = (
    "The matrix holds the distance of each pair of models, in the order of the tree beside it, which joins the "
    "closest models first. The map places the models in a plane so that their distances are kept as well as two "
    "dimensions allow; only distances mean something in it, not the axes."
)
TREE_SHARE = 0.3  # of the width of the figure


def model_map_section(models: ModelMap, *, id: str = "models") -> Section:
    """Return the distance matrix with its dendrogram, and the map of the models.

    >>> from attngeo.applications.compare.model_map import FORMS, ModelMap, Pair
    >>> pairs = (Pair(0, 1, 0.1), Pair(0, 2, 0.9), Pair(1, 2, 0.8))
    >>> section = model_map_section(ModelMap(("base", "tuned", "other"), FORMS, pairs))
    >>> section.figures[0].plotly["data"][1]["z"][0]
    [0.0, 0.9, 0.8]
    """
    order = models.order
    distances = models.distances[np.ix_(order, order)]
    numbers = [str(at + 1) for at in range(len(order))]
    names = [in_lines(f"{number} {short_name(models.names[i])}") for number, i in zip(numbers, order, strict=True)]
    places = list(range(len(order)))
    heat = {
        "type": "heatmap",
        "x": places,
        "y": places,
        "z": rounded(distances),
        "text": [[f"{a}<br>{b}" for b in names] for a in names],
        "hovertemplate": "%{text}<br>distance %{z:.4f}<extra></extra>",
        "colorscale": SEQUENTIAL,
        "reversescale": True,
        "zmin": 0,
        "colorbar": colour_bar("distance"),
        "xgap": 1,
        "ygap": 1,
    }
    y = axis("", tickvals=places, ticktext=numbers, range=[len(order) - 0.5, -0.5], showgrid=False)
    tree = axis(
        "distance",
        domain=[0, TREE_SHARE],
        nticks=2,
        tickangle=0,
        rangemode="tozero",
        autorange="reversed",
        showgrid=False,
    )
    across = axis("", domain=[TREE_SHARE + 0.07, 1], tickvals=places, ticktext=numbers, anchor="y", showgrid=False)
    panel = Panel("tree and distances", [_dendrogram(models)], tree, y)
    matrix = figure([panel], height=max(240, 34 * len(order)), legend=False, xaxis2=across)
    matrix["data"].append(heat | {"xaxis": "x2", "yaxis": "y"})
    titles = [models.names[i] for i in order]
    if len({"model", *titles}) <= len(titles):  # columns of one name would replace each other
        titles = [f"{number} {title}" for number, title in zip(numbers, titles, strict=True)]
    table = {"model": titles} | {title: rounded(column) for title, column in zip(titles, distances.T, strict=True)}
    verdicts = [
        f"{short_name(models.names[pair.a])}, {short_name(models.names[pair.b])}: {pair.verdict}"
        for pair in models.pairs
        if pair.verdict
    ]
    figures = (
        PageFigure(f"{id}-distances", f"Distances of {len(order)} models and the tree that joins them.", matrix, table),
        _plane(models, order, names, id),
    )
    notes = (f"Distance: {models.measure}.", *verdicts, *models.notes)
    return Section(id, "Distances of models", READING, figures, notes)


def _dendrogram(models: ModelMap) -> Trace:
    """Return the branches of the dendrogram; leaf i stands at height i."""
    from scipy.cluster.hierarchy import dendrogram

    lines = dendrogram(models.linkage, no_plot=True)
    x, y = [], []
    for across, along in zip(lines["dcoord"], lines["icoord"], strict=True):
        x += [*rounded(across), None]
        y += [*rounded([(place - 5) / 10 for place in along]), None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": NULL_GREY, "width": 1.6},
        "hovertemplate": "joined at %{x:.4f}<extra></extra>",
        "showlegend": False,
    }


def _plane(models: ModelMap, order: list[int], names: list[str], id: str) -> PageFigure:
    points = models.coordinates[order]
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "markers+text",
            "x": rounded([x]),
            "y": rounded([y]),
            "text": [str(at + 1)],
            "textposition": "top center",
            "marker": {"color": COLOURS[at % (len(COLOURS) - 1)], "size": 11},
            "hovertemplate": "%{x:.4f}, %{y:.4f}",
            "name": names[at],
        }
        for at, (x, y) in enumerate(points)
    ]
    upwards = axis("second coordinate", scaleanchor="x")  # lengths on the map are distances
    panel = Panel("map of the models", traces, axis("first coordinate"), upwards)
    rows = (
        {"model": models.names[i], "first coordinate": float(x), "second coordinate": float(y)}
        for i, (x, y) in zip(order, points, strict=True)
    )
    label = f"Map of {len(order)} models by {models.measure}."
    return PageFigure(f"{id}-map", label, figure([panel], height=360), columns(rows))
