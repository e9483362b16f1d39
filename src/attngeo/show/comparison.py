"""Compared models as text, as figures, and as sections of a page.

comparison_report   two models: the answers in words, then the layers and heads that changed most
model_map_report    several models: their distances and relations
comparison_figure, comparison_section   changes by layer and head, and whether the models are related
model_map_figure, model_map_section     the distances, the tree that joins the models, and their map
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from attngeo.applications.compare.relation import p_text
from attngeo.charts import (
    BLUE,
    COLOURS,
    GREY,
    PAGE,
    SEQUENTIAL,
    Axis,
    Bar,
    Figure,
    Heatmap,
    Level,
    Line,
    Panel,
    Points,
    Series,
    Text,
)
from attngeo.io.names import short_name
from attngeo.show.matplotlib import drawn
from attngeo.show.page import PageFigure, Section
from attngeo.show.scores import map_figure, map_panel
from attngeo.show.tables import WIDTH, aligned, cell, is_numeric, without_empty_columns

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure as Drawing

    from attngeo.applications.compare.comparison import ModelComparison, ModelMap

# Columns in the order of the table; titles are their names, and Δ for the changes.
_COLUMNS = (
    "stack",
    "layer",
    "head",
    "change",
    "cosine",
    "match",
    *(column for score in ("symmetry", "directionality", "norm") for column in (score, f"{score}_change")),
)
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
    numbers = [str(at) for at, _ in enumerate(order, 1)]
    rows = [
        [number, *(f"{distances[i, j]:.4f}" for j in order), models.names[i]]
        for number, i in zip(numbers, order, strict=True)
    ]
    table = aligned([["", *numbers, "model"], *rows], right=[True] * (len(order) + 1) + [False])
    related = sorted((sorted(order.index(one) + 1 for one in (pair.a, pair.b)), pair.verdict) for pair in models.pairs)
    verdicts = [f"{first}, {second}: {verdict}" for (first, second), verdict in related if verdict]
    return "\n".join([models.measure, *table, "", *verdicts, *models.notes, ""])


def _table(frame: pl.DataFrame, width: int) -> list[str]:
    columns = [name for name in _COLUMNS if name in frame.columns]
    if frame["stack"].n_unique() == 1:
        columns.remove("stack")
    shown = without_empty_columns(frame.select(columns))
    body = [
        # small changes need significant digits
        [f"{value:.3g}" if name == "change" and value is not None else cell(name, value) for name, value in row.items()]
        for row in shown.iter_rows(named=True)
    ]
    titles = ["Δ" if name.endswith("_change") else name for name in shown.columns]
    lines = aligned([titles, *body], right=is_numeric(shown))
    if max(map(len, lines)) > width and "norm" in shown.columns:
        return _table(frame.drop("norm", "norm_change"), width)
    return lines


# Figures of two models.

_CHANGE_READING = (
    "The maps show, head by head, how much the form changed relative to its norm (0: not at all) and by how much "
    "its symmetry rose (red) or fell (blue)."
)
_ORIGIN_READING = (
    "The models share an origin where the dot lies far outside of the grey band of the null; the cross is a control "
    "that pairs each layer with the next one."
)
_DISTANCE_READING = (
    "The distance compares the geometry of the heads on the same inputs: far below its band, the two networks are "
    "organised alike at the same depth."
)
_MAPS = {"change": "change of the form", "symmetry_change": "change of symmetry"}
_STACKS = 3  # rows of the figure, at most


@dataclass(frozen=True)
class _Test:
    """A value, its null and its control."""

    title: str
    name: str
    value: float
    null: str
    mean: float
    std: float
    p_value: str
    control: float | None = None

    def values(self) -> dict[str, float]:
        """Return the value and, where there is one, its control."""
        return {self.name: self.value} | ({} if self.control is None else {"next layers": self.control})

    def panel(self, upright: bool) -> Panel:
        """Return the value and its control as points on one axis, vertical on paper, and the null as a band."""
        series: list[Series] = [Level(self.mean, 1.96 * self.std, not upright, label=f"{self.null}, 95%")]
        styles = (("circle", BLUE), ("x", GREY))
        for (name, at), (symbol, colour) in zip(self.values().items(), styles, strict=False):
            x, y = ((0,), (at,)) if upright else ((at,), (0,))
            series.append(Points(x, y, colour, name, symbol, 12, hover="{y:.4g}" if upright else "{x:.4g}"))
        if upright:
            return Panel("related?", series, Axis(self.p_value, flat=True, grid=False), Axis(self.title))
        y_axis = Axis(range=(-0.6, 0.6), flat=True, grid=False)
        return Panel(f"{self.title}, {self.p_value}", series, Axis(zero=True), y_axis)

    def page_figure(self, id: str, label: str) -> PageFigure:
        """Return the panel and its numbers."""
        null = {f"{self.null}, mean": self.mean, f"{self.null}, standard deviation": self.std}
        (name, value), *control = self.values().items()
        rows = [{"what": what, "value": number} for what, number in [(name, value), *null.items(), *control]]
        return PageFigure(f"comparison-{id}", label, Figure([self.panel(upright=False)], height=110), rows)


def _relation(comparison: ModelComparison) -> _Test | None:
    related = comparison.related
    if related.statistic is None or related.null_mean is None or related.p_value is None:
        return None
    level = (related.statistic, related.null_name, related.null_mean, related.null_std or 0.0)
    p_value = p_text(related.p_value, related.draws)
    return _Test("mean matched |cosine|", "matched heads", *level, p_value, related.control)


def comparison_figure(comparison: ModelComparison) -> Drawing:
    """Draw, per stack, the change of each head's form and symmetry as layer × head maps, and the relation.

    Where no forms can be compared, the answers stand in words in the place of the maps.
    """
    test = _relation(comparison)
    last = test.panel(upright=True) if test else Panel("", [Text((0,), (0,), ("no verdict",), GREY)], empty=True)
    stacks = comparison.changes.partition_by("stack", maintain_order=True)[:_STACKS]
    panels: list[Panel] = []
    for frame in stacks:
        above = f"{frame['stack'][0]}: " if len(stacks) > 1 else ""
        panels += [
            map_panel(above * (column == "change") + name, frame, {column: name}) for column, name in _MAPS.items()
        ]
        panels.append(last if len(panels) == 2 else Panel("", (), empty=True))
    columns, widths = 3, [1.0, 1.0, 0.7]
    if not stacks:
        words = "\n\n".join(fill(line, 80) for line in comparison.words())
        panels, columns, widths = [Panel("", [Text((0,), (0,), (words,))], empty=True), last], 2, [2.0, 0.7]
    title = f"{short_name(comparison.a)} → {short_name(comparison.b)}"
    size = (PAGE, 2.4 * max(1, len(stacks)) + 0.4)
    return drawn(Figure(panels, columns, widths, title, size=size, legend="under"))


def comparison_section(comparison: ModelComparison) -> Section:
    """Return the maps of the changes per stack, the relation, and the distance where it was measured.

    >>> encoder, decoder = (attngeo.bundled(name) for name in ("encoder", "decoder"))
    >>> section = comparison_section(attngeo.compare(encoder, decoder))
    >>> [figure.id for figure in section.figures]
    ['comparison-change-1', 'comparison-symmetry-1', 'comparison-related']
    """
    a, b = short_name(comparison.a), short_name(comparison.b)
    names = f"{a} → {b}" if a != b else f"{comparison.a} → {comparison.b}"
    figures: list[PageFigure] = []
    heads = comparison.changes.drop_nulls("head")
    for number, part in enumerate(heads.partition_by("stack", maintain_order=True), 1):
        for column, score in _MAPS.items():
            panel = map_panel(f"{score}, {part['stack'][0]}", part, {column: score})
            rows = part.select("stack", "layer", "head", column).rows(named=True)
            id, label = column.removesuffix("_change"), f"{score.capitalize()} of each head, {names}."
            figures.append(PageFigure(f"comparison-{id}-{number}", label, map_figure(panel), rows))
    readings = [_CHANGE_READING] if figures else []
    if (related := _relation(comparison)) is not None:
        readings.append(_ORIGIN_READING)
        figures.append(related.page_figure("related", f"Are {names} related?"))
    if (found := comparison.distance) is not None:
        readings.append(_DISTANCE_READING)
        level = (found.value, "permuted heads", found.null_mean, found.null_std, p_text(found.p_value, found.draws))
        distance = _Test("distance of the networks", "the two networks", *level)
        figures.append(distance.page_figure("distance", f"How far apart are the head geometries of {names}?"))
    return Section("comparison", f"Compared: {names}", " ".join(readings), tuple(figures), tuple(comparison.words()))


# Figures of several models.

_MAP_READING = (
    "The matrix holds the distance of each pair of models, in the order of the tree beside it, which joins the "
    "closest models first. The map places the models in a plane so that their distances are kept as well as two "
    "dimensions allow; only distances mean something in it, not the axes."
)


def _tree_panel(models: ModelMap) -> Panel:
    """Return the dendrogram, with its root on the left; leaf i stands at height i."""
    from scipy.cluster.hierarchy import dendrogram

    lines = dendrogram(models.linkage, no_plot=True)
    x = [value for branch in lines["dcoord"] for value in (*branch, None)]
    y = [value for branch in lines["icoord"] for value in (*((place - 5) / 10 for place in branch), None)]
    line = Line(x, y, BLUE, width=1.6, hover="joined at {x:.4f}")
    across = Axis("distance", zero=True, reverse=True, grid=False)
    return Panel("tree", [line], across, _downwards(_numbers(models)), note="average linkage")


def _numbers(models: ModelMap) -> list[str]:
    return [str(at) for at, _ in enumerate(models.names, 1)]


def _numbered(models: ModelMap) -> list[str]:
    return [f"{at} {short_name(models.names[i])}" for at, i in enumerate(models.order, 1)]


def _downwards(labels: list[str]) -> Axis:
    ticks: dict[float, str] = dict(enumerate(labels))
    return Axis(ticks=ticks, range=(-0.5, len(labels) - 0.5), reverse=True, grid=False)


def _distance_panel(models: ModelMap, labels: list[str]) -> Panel:
    """Return the distance matrix in the order of the dendrogram; labels: of its rows."""
    distances = models.distances[np.ix_(models.order, models.order)]
    names = [[f"{a}\n{b}" for b in _numbered(models)] for a in _numbered(models)]
    heat = Heatmap(
        distances,
        (0.0, float(distances.max())),
        f"{SEQUENTIAL}_r",
        bar=Bar(),
        gap=True,
        hover="{name}\ndistance {z:.4f}",
        names=names,
    )
    return Panel("distance", [heat], Axis(ticks=dict(enumerate(_numbers(models))), grid=False), _downwards(labels))


def _plane_panel(models: ModelMap, legend: bool) -> Panel:
    series: list[Series] = []
    for at, (name, (x, y)) in enumerate(zip(_numbered(models), models.coordinates[models.order], strict=True)):
        label, colour = name if legend else "", COLOURS[at % len(COLOURS)]
        series.append(Points((x,), (y,), colour, label, size=11, hover="{x:.4f}, {y:.4f}"))
        series.append(Text((x,), (y,), (str(at + 1),)))
    return Panel("map", series, Axis("first coordinate"), Axis("second coordinate"), "classical scaling", equal=True)


def model_map_figure(models: ModelMap) -> Drawing:
    """Draw the dendrogram, the distance matrix in its order, and the 2-D map."""
    panels = [_distance_panel(models, _numbered(models)), _tree_panel(models), _plane_panel(models, legend=False)]
    return drawn(Figure(panels, 3, title=models.measure, size=(PAGE, 2.6)))


def model_map_section(models: ModelMap) -> Section:
    """Return the distance matrix with its dendrogram, and the map of the models.

    >>> from attngeo.applications.compare.comparison import FORMS, ModelMap, Pair
    >>> pairs = (Pair(0, 1, 0.1), Pair(0, 2, 0.9), Pair(1, 2, 0.8))
    >>> section = model_map_section(ModelMap(("base", "tuned", "other"), FORMS, pairs))
    >>> section.figures[0].chart.panels[1].series[0].values[0].tolist()
    [0.0, 0.9, 0.8]
    """
    order, count = models.order, len(models.names)
    panels = [_tree_panel(models), _distance_panel(models, _numbers(models))]
    chart = Figure(panels, 2, (0.3, 0.63), same="y", height=max(240, 34 * count))
    titles = [models.names[i] for i in order]
    if len({"model", *titles}) <= len(titles):  # columns of one name would replace each other
        titles = [f"{at} {title}" for at, title in enumerate(titles, 1)]
    distances = [
        {"model": title} | dict(zip(titles, models.distances[i, order], strict=True))
        for title, i in zip(titles, order, strict=True)
    ]
    places = [
        {"model": models.names[i], "first coordinate": x, "second coordinate": y}
        for i, (x, y) in zip(order, models.coordinates[order], strict=True)
    ]
    verdicts = [
        f"{short_name(models.names[pair.a])}, {short_name(models.names[pair.b])}: {pair.verdict}"
        for pair in models.pairs
        if pair.verdict
    ]
    plane = Figure([_plane_panel(models, legend=True)], height=360)
    figures = (
        PageFigure("models-distances", f"Distances of {count} models and the tree that joins them.", chart, distances),
        PageFigure("models-map", f"Map of {count} models by {models.measure}.", plane, places),
    )
    notes = (f"Distance: {models.measure}.", *verdicts, *models.notes)
    return Section("models", "Distances of models", _MAP_READING, figures, notes)
