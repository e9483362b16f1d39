"""Pruning: the loss by share of heads removed, and the heads that a plan removes with their costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.io.names import short_name
from attngeo.show.canvas import COLOURS
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import (
    NULL_GREY,
    SEQUENTIAL,
    Panel,
    Trace,
    axis,
    columns,
    escaped,
    figure,
    in_lines,
    layer_bar,
    rounded,
    rounded_number,
)

if TYPE_CHECKING:
    from attngeo.applications.prune.curve import LossCurve, LossPoint
    from attngeo.applications.prune.plan import PrunePlan

CURVE_READING = (
    "Each curve shows the loss of the model without a growing share of its heads, chosen by one criterion; the "
    "dotted line is the full model. Solid curves refit the remaining heads, dashed ones do not. A criterion is "
    "worth its cost only where it stays below random choice."
)
PLAN_READING = (
    "The dots are the heads that the plan removes, in the order in which they were chosen, with the cost that the "
    "criterion gave each of them at that moment."
)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star", "hexagon", "pentagon")


def pruning_section(plan: PrunePlan | None = None, curve: LossCurve | None = None, *, id: str = "pruning") -> Section:
    """Return the loss curve, the heads of a plan, or both.

    >>> from attngeo.applications.prune.curve import LossCurve, LossPoint
    >>> points = (LossPoint("refit", 4, 0.25, True, 3.1), LossPoint("refit", 8, 0.5, True, 3.4))
    >>> (figure,) = pruning_section(curve=LossCurve("model", "masked tokens", 3.0, points)).figures
    >>> figure.plotly["data"][1]["y"]
    [3.1, 3.4]
    """
    figures = []
    if curve is not None and curve.points:
        figures.append(_curve_figure(curve, id))
    if plan is not None:
        figures.append(_plan_figure(plan, id))
    readings = [CURVE_READING] * (curve is not None) + [PLAN_READING] * (plan is not None)
    notes = () if plan is None else tuple(plan.notes)
    return Section(id, "Removing heads", " ".join(readings), tuple(figures), notes)


def _curve_figure(curve: LossCurve, id: str) -> PageFigure:
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [0, rounded_number(100 * max(point.share for point in curve.points))],
            "y": rounded([curve.full, curve.full]),
            "line": {"color": NULL_GREY, "width": 1.5, "dash": "dot"},
            "legendgroup": "",
            "name": "full model",
            "hovertemplate": "%{y:.4f}",
        }
    ]
    methods = list(dict.fromkeys(point.method for point in curve.points))
    for number, method in enumerate(methods):
        for refit in (True, False):
            own = [point for point in curve.points if point.method == method and point.refit == refit]
            if own:
                traces.append(_method(method, number, refit, own))
    for at, trace in enumerate(traces):  # one legend entry per criterion hides and shows both of its curves
        trace["showlegend"] = all(trace["legendgroup"] != other["legendgroup"] for other in traces[:at])
    measured = "squared error of the output" if curve.objective == "output" else f"{escaped(curve.objective)} loss"
    panel = Panel(in_lines(short_name(curve.model)), traces, axis("share of heads removed, %"), axis(measured))
    rows = (
        {
            "method": point.method,
            "heads removed": point.heads,
            "share": float(point.share),
            "refit": point.refit,
            "loss": float(point.loss),
            "seed": point.seed,
        }
        for point in curve.points
    )
    label = f"Loss of {short_name(curve.model)} against the share of heads removed, by {len(methods)} criteria."
    return PageFigure(f"{id}-losses", label, figure([panel], height=420), columns(rows))


def _method(method: str, number: int, refit: bool, points: Sequence[LossPoint]) -> Trace:
    """Return the mean over seeds at each share, with bars from the lowest to the highest of several seeds."""
    colour = NULL_GREY if method == "random" else COLOURS[number % (len(COLOURS) - 1)]
    by_share: dict[float, list[float]] = {}
    for point in sorted(points, key=lambda point: point.share):
        by_share.setdefault(point.share, []).append(point.loss)
    means = [sum(losses) / len(losses) for losses in by_share.values()]
    seeds = max(len(losses) for losses in by_share.values())
    trace: Trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": rounded([100 * share for share in by_share]),
        "y": rounded(means),
        "line": {"color": colour, "width": 2, "dash": "solid" if refit else "dash"},
        "marker": {"color": colour, "size": 7, "symbol": _SYMBOLS[number % len(_SYMBOLS)]},
        "hovertemplate": "%{x:.1f}% removed: %{y:.4f}" + ("" if refit else ", no refit"),
        "legendgroup": escaped(method),
        "name": escaped(method) + (f" ({seeds} seeds)" if seeds > 1 else ""),
    }
    if seeds > 1:
        losses = list(by_share.values())
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": rounded([max(some) - mean for some, mean in zip(losses, means, strict=True)]),
            "arrayminus": rounded([mean - min(some) for some, mean in zip(losses, means, strict=True)]),
            "color": colour,
            "thickness": 1,
            "width": 3,
        }
    return trace


def _plan_figure(plan: PrunePlan, id: str) -> PageFigure:
    order = list(range(1, len(plan.removed) + 1))
    known = any(one.cost is not None for one in plan.removed)
    layers = [one.layer for one in plan.removed]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": order,
        "y": rounded([one.cost for one in plan.removed]) if known else layers,
        "customdata": [escaped(label) for label in plan.labels],
        "hovertemplate": "%{x}: %{customdata}, " + ("cost %{y:.3g}" if known else "layer %{y}") + "<extra></extra>",
        "marker": {
            "size": 8,
            "color": layers,
            "colorscale": SEQUENTIAL,
            "cmin": 0,
            "cmax": max([*layers, 1]),
            "colorbar": layer_bar(max(layers, default=0)),
            "line": {"width": 0.5, "color": "#ffffff"},
        },
    }
    title = f"{len(order)} of {plan.total} heads, by {escaped(plan.method)}"
    panel = Panel(title, [trace], axis("order of removal"), axis("cost of the head" if known else "layer"))
    rows = (
        {"order": at, "stack": one.stack, "layer": one.layer, "head": one.head, "cost": rounded_number(one.cost)}
        for at, one in enumerate(plan.removed, 1)
    )
    label = f"Heads of {short_name(plan.model)} in the order in which the plan removes them, with their costs."
    return PageFigure(f"{id}-plan", label, figure([panel], height=300, legend=False), columns(rows))
