"""Models in the plane of two scores, on paper and on a page, and the organised networks of an atlas in words.

atlas_figure     the models of an atlas, encoders and decoders apart, with published models behind them
plane_section    the models of a report, with the published ones behind them
summary_report   organised networks: means over texts, with intervals and controls
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attngeo.charts import (
    COLOURS,
    COLUMN,
    LIGHT_GREY,
    PAGE,
    SYMBOLS,
    Axis,
    Figure,
    Level,
    Line,
    Panel,
    Points,
    Series,
    stack_colour,
)
from attngeo.io.names import short_name
from attngeo.show.matplotlib import drawn
from attngeo.show.page import PageFigure, Section, stack_name
from attngeo.show.tables import aligned

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure as Drawing

NAMED = 14  # models that get a colour, a symbol and a line of the legend; more would not be told apart
HEIGHT = 3.4  # inches, with up to five rows of the legend
_MEANINGS = {
    "symmetry": "symmetry: 1 symmetric, −1 skew",
    "directionality": "directionality: below 0 columns dominate",
}
_PLANE_SYMBOLS = ("diamond", "square", "star", "triangle-up", "cross", "hexagon", "pentagon")
_READING = (
    "Each small dot is a published model, placed by the median symmetry and the median directionality of its "
    "layers: encoders lie above decoders, with some overlap. The large symbols are the models of this report; their "
    "bars reach from the first to the third quartile of their layers."
)
_LEGEND = """\
mean, interval: over texts, with the 95% interval of the mean; std: between texts
control: the mean of the control (permuted values, dyadic trees, shuffled heads, permuted rows before the softmax)
better: share of texts on which the figure is better than its control
gain: 1 − (l1/l2 along the trees) / (l1/l2 along dyadic trees); shareN: share of coefficients with N% of the energy
rank_correlation, information, procrustes: agreement of the head geometries on two texts
"""


def atlas_figure(points: pl.DataFrame, published: pl.DataFrame, x: str, y: str) -> Drawing:
    """Draw one point per model and stack, encoders and decoders in panels of their own.

    points:    columns model, revision, group, x and y, as `attngeo.atlas.views.model_points` returns them
    published: columns group, x and y; drawn in grey
    x, y:      the names of the columns
    """
    import polars as pl

    groups = [name for name in ("encoders", "decoders", "other stacks") if name in points["group"].to_list()]
    groups = groups or ["encoders", "decoders"]
    models = points.select("model", "revision").unique(maintain_order=True).rows()
    labels = _labels(models)
    order = list(dict.fromkeys(labels.values()))
    behind = "published, arXiv 2502.10927"
    panels: list[Panel] = []
    for group in groups:
        series: list[Series] = [Level(0, upright=True, width=1.2), Level(0, width=1.2)]
        known = published.filter(published["group"] == group)
        if known.height:
            series.append(Points(known["x"].to_list(), known["y"].to_list(), LIGHT_GREY, behind, size=6))
        own = points.filter(points["group"] == group)
        called = [labels[key] for key in own.select("model", "revision").rows()]
        own = own.with_columns(label=pl.Series(called, dtype=pl.String))
        for part in own.partition_by("label", maintain_order=True):  # one by one, thousands of models would take long
            at = order.index(label := part["label"][0])
            style: dict[str, Any] = {"symbol": SYMBOLS[at // len(COLOURS)], "size": 12}
            style = {"size": 7, "opacity": 0.6} if len(models) > NAMED else style
            x_values, y_values = part["x"].to_list(), part["y"].to_list()
            series.append(Points(x_values, y_values, COLOURS[at % len(COLOURS)], label, edge=True, **style))
        y_axis = Axis(_MEANINGS.get(y, y) if not panels else "")
        panels.append(Panel(group, series, Axis(_MEANINGS.get(x, x)), y_axis, note="median over layers"))
    entries = len(order) + bool(published.height)
    height = HEIGHT + 0.14 * max(0.0, entries / 2 - 5)  # a long legend leaves the panels their height
    size = (COLUMN if len(groups) == 1 else PAGE, height)
    return drawn(Figure(panels, columns=len(groups), same="xy", size=size))


def _labels(models: list[tuple[str, str | None]]) -> dict[tuple[str, str | None], str]:
    """Return how each model is called in the legend; one name for all if there are many.

    It is a hub id, or the last two parts of a path, with a revision that is not the main one.
    """
    if len(models) > NAMED:
        return dict.fromkeys(models, f"{len(models)} models of the atlas")
    short = {}
    for model, revision in models:
        short[model, revision] = _revised(short_name(model) if revision is None else model, revision)
    names = list(short.values())
    return {key: name if names.count(name) == 1 else key[0] for key, name in short.items()}  # two paths may end alike


def plane_section(summary: pl.DataFrame, published: pl.DataFrame) -> Section:
    """Return one figure with the models of `summary` before those of `published`.

    summary:   as `ScoreTable.summary` returns it
    published: as `list_published` returns it, one row per model and stack

    >>> from attngeo.weights.scoring import list_published
    >>> table = attngeo.score(attngeo.bundled("encoder"))
    >>> (figure,) = plane_section(table.summary(), list_published(caution=False)).figures
    >>> [points.label for points in figure.chart.panels[0].series if points.label]
    ['published encoder', 'published decoder', 'bundled/encoder']
    """
    layers = summary.filter(summary["level"] == "layer").rows(named=True)
    series: list[Series] = [
        Points(
            part["directionality"].to_list(),
            part["symmetry"].to_list(),
            stack_colour(part["stack"][0]),
            f"published {part['stack'][0]}",
            size=6,
            opacity=0.55,
            hover="{name}\nsymmetry {y:.3f}, directionality {x:.3f}",
            names=part["hub_id"].to_list(),
        )
        for part in published.partition_by("stack", maintain_order=True)
    ]
    for number, row in enumerate(layers):
        colour, label = stack_colour(row["stack"]), stack_name(row["model"], row["stack"])
        parts = ("q25", "q75", "median")
        x, y = ([row[f"{score}_{part}"] for part in parts] for score in ("directionality", "symmetry"))
        bars = [*x[:2], None, x[2], x[2]], [y[2], y[2], None, *y[:2]]
        series.append(Line(*bars, colour, width=1.5, group=label))
        hover = "symmetry {y:.3f}, directionality {x:.3f}"
        symbol = _PLANE_SYMBOLS[number % len(_PLANE_SYMBOLS)]
        series.append(Points(x[2:], y[2:], colour, label, symbol, 13, edge=True, hover=hover))
    panel = Panel("median layer of each model", series, Axis("directionality"), Axis("symmetry"))
    rows = [
        {
            "model": row[name],
            "stack": row["stack"],
            "symmetry": row[f"symmetry{ending}"],
            "directionality": row[f"directionality{ending}"],
            "published": not ending,
        }
        for some, name, ending in ((layers, "model", "_median"), (published.rows(named=True), "hub_id", ""))
        for row in some
    ]
    names = ", ".join(dict.fromkeys(short_name(row["model"]) for row in layers))
    label = f"Median symmetry against median directionality of {names} and of {published.height} published models."
    figure = PageFigure("plane-1", label, Figure([panel], height=440), rows)
    return Section("plane", "Among published models", _READING, (figure,))


def summary_report(summary: pl.DataFrame) -> str:
    """Return a table per network and options, then what the columns mean.

    summary: as `Atlas.summary` returns it
    """
    sections = []
    for part in summary.partition_by("model", "revision", "content", "table", "options", maintain_order=True):
        first = part.row(0, named=True)
        texts, pairs = first["texts"], first["table"] == "agreement"
        count = f"{texts} pair{'s' * (texts != 1)} of texts" if pairs else f"{texts} text{'s' * (texts != 1)}"
        title = f"{_revised(first['model'], first['revision'])}: {first['table']}, {count}"
        title += f", {first['options']}" if first["options"] else ""
        rows = [["figure", "mean", "interval", "std", "control", "better"], *map(_cells, part.rows(named=True))]
        sections.append("\n".join([title, *aligned(rows, right=[False, True, True, True, True, True])]))
    return "\n\n".join([*sections, _LEGEND])


def _revised(name: str, revision: str | None) -> str:
    """Return the name of a model with a revision that is not the main one."""
    return name if revision in (None, "main") else f"{name}@{revision}"


def _cells(row: dict[str, Any]) -> list[str]:
    """Return one line of a table; shares of coefficients can be very small, and are printed as percentages."""
    number = _percentage if row["figure"].startswith("share") and not row["figure"].startswith("shared") else _number
    mean, low, high, std, control = (
        "" if row[name] is None else number(row[name]) for name in ("mean", "low", "high", "std", "control")
    )
    better = "" if row["better"] is None else f"{100 * row['better']:.0f}%"
    return [row["figure"], mean, f"{low} to {high}" if low else "", std, control, better]


def _percentage(value: float) -> str:
    return f"{100 * value:.3g}%"


def _number(value: float) -> str:
    """Return a number with three or more significant digits."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1 else f"{value:.3f}"
