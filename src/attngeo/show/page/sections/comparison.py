"""Two models compared: the change of every head, whether the models are related, and how far apart they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.applications.compare.p_values import p_text
from attngeo.io.names import short_name
from attngeo.show.canvas import BLUE
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import (
    NULL_GREY,
    Panel,
    Trace,
    axis,
    columns,
    escaped,
    figure,
    null_band,
    rounded,
    rounded_number,
    whole_axis,
)
from attngeo.show.page.sections.maps import gap_marks, head_grid, heat_map

if TYPE_CHECKING:
    import polars as pl

    from attngeo.applications.compare.comparison import ModelComparison
    from attngeo.applications.compare.distance.network_distance import NetworkDistance
    from attngeo.applications.compare.origin.relation import Relation

CHANGE_READING = (
    "The maps show, head by head, how much the form changed relative to its norm (0: not at all) and by how much "
    "its symmetry rose (red) or fell (blue)."
)
ORIGIN_READING = (
    "The models share an origin where the dot lies far outside of the grey band of the null; the cross is a control "
    "that pairs each layer with the next one."
)
DISTANCE_READING = (
    "The distance compares the geometry of the heads on the same inputs: far below its band, the two networks are "
    "organised alike at the same depth."
)


def comparison_section(comparison: ModelComparison, *, id: str = "comparison") -> Section:
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
        stack = part["stack"][0]
        figures.append(
            _map(part, "change", f"change of the form, {escaped(stack)}", False, f"{id}-change-{number}", names)
        )
        figures.append(
            _map(
                part, "symmetry_change", f"change of symmetry, {escaped(stack)}", True, f"{id}-symmetry-{number}", names
            )
        )
    readings = [CHANGE_READING] if figures else []
    related = _related(comparison.related)
    if related is not None:
        readings.append(ORIGIN_READING)
        figures.append(_level_figure(related, f"{id}-related", f"Are {names} related?"))
    if comparison.distance is not None:
        readings.append(DISTANCE_READING)
        label = f"How far apart are the head geometries of {names}?"
        figures.append(_level_figure(_distance(comparison.distance), f"{id}-distance", label))
    return Section(id, f"Compared: {names}", " ".join(readings), tuple(figures), tuple(comparison.words()))


def _map(part: pl.DataFrame, column: str, title: str, signed: bool, id: str, names: str) -> PageFigure:
    values, labels = head_grid(part, column)
    layers, heads = values.shape
    panel = Panel(
        title,
        [heat_map(values, labels, title, signed), *gap_marks(labels)],
        whole_axis("head", heads),
        whole_axis("layer", layers, range=[-0.5, layers - 0.5]),
    )
    table = columns(part.select("stack", "layer", "head", column).iter_rows(named=True))
    height = min(560, max(200, 22 * layers))
    label = f"{title.partition(',')[0].capitalize()} of each head, {names}."
    return PageFigure(id, label, figure([panel], height=height, legend=False), table)


def _related(related: Relation) -> dict[str, object] | None:
    if related.statistic is None or related.null_mean is None or related.p_value is None:
        return None
    return {
        "title": f"mean matched |cosine|, {p_text(related.p_value, related.draws)}",
        "value": related.statistic,
        "value name": "matched heads",
        "mean": related.null_mean,
        "std": related.null_std,
        "null name": related.null_name,
        "control": related.control,
        "control name": "layers paired with the next",
    }


def _distance(distance: NetworkDistance) -> dict[str, object]:
    return {
        "title": f"distance of the networks, {p_text(distance.p_value, distance.draws)}",
        "value": distance.value,
        "value name": "the two networks",
        "mean": distance.null_mean,
        "std": distance.null_std,
        "null name": "permuted heads",
        "control": None,
        "control name": "",
    }


def _level_figure(level: dict[str, object], id: str, label: str) -> PageFigure:
    """Return a value on a horizontal axis, with its null as a band and its control as a cross."""
    value, mean, std, control = (_float(level[name]) for name in ("value", "mean", "std", "control"))
    assert value is not None and mean is not None
    band = null_band((-0.5, 0.5), (mean, std), f"{level['null name']}, 95%")
    traces: list[Trace] = [band | {"x": band["y"], "y": band["x"]}]  # the band stands upright
    dots = [(value, str(level["value name"]), "circle", BLUE), (control, str(level["control name"]), "x", NULL_GREY)]
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "x": rounded([at]),
            "y": [0],
            "marker": {"color": colour, "size": 12, "symbol": symbol},
            "hovertemplate": "%{x:.4g}",
            "name": name,
        }
        for at, name, symbol, colour in dots
        if at is not None
    ]
    y = axis("", showticklabels=False, showgrid=False, range=[-0.6, 0.6], fixedrange=True)
    panel = Panel(str(level["title"]), traces, axis("", rangemode="tozero"), y)
    rows: list[dict[str, object]] = [
        {"what": level["value name"], "value": value},
        {"what": f"{level['null name']}, mean", "value": mean},
        {"what": f"{level['null name']}, standard deviation", "value": rounded_number(std)},
    ]
    rows += [{"what": level["control name"], "value": control}] * (control is not None)
    return PageFigure(id, label, figure([panel], height=110), columns(rows))


def _float(value: object) -> float | None:
    return value if isinstance(value, float) else None
