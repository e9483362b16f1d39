"""Figures of compared models: maps of the changes by layer and head, the relation and its null, maps of models."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from attngeo.applications.compare.p_values import p_text
from attngeo.arrays import Floats
from attngeo.io.names import short_name
from attngeo.show.canvas import (
    BLUE,
    COLOURS,
    DASHED,
    GREY,
    PAGE,
    SMALL,
    colour_limit,
    for_print,
    new_figure,
    panel_title,
    style_axes,
)

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attngeo.applications.compare.comparison import ModelComparison
    from attngeo.applications.compare.model_map import ModelMap
    from attngeo.applications.compare.origin.relation import Relation

_STACKS = 3  # rows of the figure, at most


@for_print
def comparison_figure(comparison: ModelComparison) -> Figure:
    """Draw, per stack, the change of each head's form and symmetry as layer × head maps, and the relation.

    Where no forms can be compared, the answers stand in words in the place of the maps.
    """
    stacks = comparison.changes.partition_by("stack", maintain_order=True)[:_STACKS]
    figure = new_figure(PAGE, 2.4 * max(1, len(stacks)) + 0.4)
    grid = figure.add_gridspec(max(1, len(stacks)), 3, width_ratios=(1, 1, 0.7))
    for row, frame in enumerate(stacks):
        name = f"{frame['stack'][0]}: " if len(stacks) > 1 else ""
        change, symmetry = (_map(frame, column) for column in ("change", "symmetry_change"))
        most, limit = colour_limit(change), colour_limit(symmetry)
        _draw_map(figure, figure.add_subplot(grid[row, 0]), change, f"{name}change of the form", "viridis", (0, most))
        _draw_map(figure, figure.add_subplot(grid[row, 1]), symmetry, "change of symmetry", "RdBu_r", (-limit, limit))
    if not stacks:
        words = figure.add_subplot(grid[0, :2])
        words.set_axis_off()
        words.text(0, 1, "\n\n".join(fill(line, 80) for line in comparison.words()), va="top", fontsize=SMALL)
    _draw_relation(figure.add_subplot(grid[:, 2]), comparison.related)
    figure.suptitle(f"{short_name(comparison.a)} → {short_name(comparison.b)}")
    return figure


@for_print
def model_map_figure(models: ModelMap) -> Figure:
    """Draw the distance matrix in the order of the dendrogram, the dendrogram, and the 2-D map."""
    from scipy.cluster.hierarchy import dendrogram

    figure = new_figure(PAGE, 2.6)
    matrix, tree, plane = figure.subplots(1, 3)
    order = models.order
    numbers = [str(at + 1) for at in range(len(order))]
    names = [f"{number}  {short_name(models.names[i])}" for number, i in zip(numbers, order, strict=True)]
    image = matrix.imshow(models.distances[np.ix_(order, order)], cmap="viridis_r", interpolation="nearest")
    matrix.set_xticks(range(len(order)), numbers)
    matrix.set_yticks(range(len(order)), names)
    figure.colorbar(image, ax=matrix, shrink=0.8)
    panel_title(matrix, "distance")
    lines = dendrogram(models.linkage, no_plot=True)
    for x, y in zip(lines["icoord"], lines["dcoord"], strict=True):
        tree.plot(y, x, color=BLUE, linewidth=1.4)
    tree.set_yticks([10 * at + 5 for at in range(len(order))], numbers)
    tree.invert_yaxis()
    style_axes(tree, grid="x")
    panel_title(tree, "dendrogram", "average linkage")
    for at, (number, (x, y)) in enumerate(zip(numbers, models.coordinates[order], strict=True)):
        plane.scatter([x], [y], color=COLOURS[at % len(COLOURS)], s=22, zorder=3)
        plane.annotate(number, (x, y), (4, 4), textcoords="offset points", fontsize=SMALL)
    plane.margins(0.2)
    plane.set_aspect("equal", adjustable="datalim")  # lengths on the map are distances
    style_axes(plane)
    panel_title(plane, "map", "classical scaling")
    figure.suptitle(models.measure)
    return figure


def _map(frame: pl.DataFrame, column: str) -> Floats:
    """Return the values of the heads as [layers, heads], or of the layers as [layers, 1] where there are no heads."""
    heads = frame.filter(frame["head"].is_not_null())
    rows = heads if heads.height else frame
    layers, columns = rows["layer"].to_numpy(), rows["head"].fill_null(0).to_numpy()
    values = np.full((int(layers.max()) + 1, int(columns.max()) + 1), np.nan)
    values[layers, columns] = rows[column].cast(float).fill_null(np.nan).to_numpy()
    return values


def _draw_map(figure: Figure, ax: Axes, values: Floats, title: str, colours: str, limits: tuple[float, float]) -> None:
    from matplotlib.ticker import MaxNLocator

    image = ax.imshow(
        values, cmap=colours, vmin=limits[0], vmax=limits[1], interpolation="nearest", aspect="auto", origin="lower"
    )
    figure.colorbar(image, ax=ax)
    panel_title(ax, title)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))


def _draw_relation(ax: Axes, related: Relation) -> None:
    """Draw the statistic, the control, and the mean ± 2 standard deviations of the null."""
    panel_title(ax, "related?")
    if related.p_value is None or None in (related.statistic, related.null_mean, related.null_std):
        ax.text(0.5, 0.5, "no verdict", ha="center", va="center", transform=ax.transAxes, color=GREY)
        ax.set_axis_off()
        return
    statistic, mean, margin = related.statistic or 0.0, related.null_mean or 0.0, 2 * (related.null_std or 0.0)
    ax.axhspan(mean - margin, mean + margin, color=GREY, alpha=0.3, linewidth=0)
    ax.axhline(mean, color=GREY, linestyle=DASHED, linewidth=1)
    ax.annotate(related.null_name, (0, mean), (8, 3), textcoords="offset points", fontsize=SMALL, color=GREY)
    ax.plot([0], [statistic], "o", color=BLUE)
    ax.annotate("matched heads", (0, statistic), (8, -3), textcoords="offset points", fontsize=SMALL)
    if related.control is not None:
        ax.plot([0], [related.control], "x", color=GREY)
        ax.annotate(
            "next layers", (0, related.control), (8, -3), textcoords="offset points", fontsize=SMALL, color=GREY
        )
    ax.set_xlim(-0.3, 1)
    ax.set_xticks([])
    ax.set_ylabel("mean matched |cosine|")
    ax.set_xlabel(p_text(related.p_value, related.draws))
    style_axes(ax, grid="y")
