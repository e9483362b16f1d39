"""Pruning as text, as a figure, and as a section of a page: which heads went, and what it cost.

pruning_report    the heads that each layer loses, and a table of losses
pruning_figure    the loss against the share of heads removed
pruning_section   the same on a page, and the heads in the order of their removal
"""

from __future__ import annotations

from dataclasses import asdict
from statistics import mean
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from attngeo.charts import (
    COLOURS,
    COLUMN,
    GREY,
    PAGE,
    SYMBOLS,
    Axis,
    Bar,
    Figure,
    Level,
    Line,
    Panel,
    Points,
    Series,
)
from attngeo.io.names import short_name
from attngeo.show.matplotlib import drawn
from attngeo.show.page import PageFigure, Section
from attngeo.show.tables import aligned

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from attngeo.applications.prune.curve import LossCurve
    from attngeo.applications.prune.plan import PrunePlan


def pruning_report(plan: PrunePlan, curve: LossCurve) -> str:
    """Return which heads each layer loses, and a table of losses by method and share."""
    lines = [str(plan).partition(":")[0], *plan.notes, "", *_removed_table(plan), "", *_loss_table(curve)]
    return "\n".join(lines) + "\n"


def _loss_table(curve: LossCurve) -> list[str]:
    """Return the lines of a table: one row per method, the increase of the loss without / with refit per share."""
    shares = sorted({round(point.share, 3) for point in curve.points})
    losses: dict[tuple[str, float, bool], list[float]] = {}
    for point in curve.points:
        losses.setdefault((point.method, round(point.share, 3), point.refit), []).append(point.loss - curve.full)
    rows = [["method", *(f"{share:.0%}" for share in shares)]]
    for method in dict.fromkeys(point.method for point in curve.points):
        parts = ([losses.get((method, share, refit), []) for refit in (False, True)] for share in shares)
        rows.append([method, *(" / ".join(f"{mean(part):+.3f}" for part in both if part) or "-" for both in parts)])
    measured = "squared error relative to the output" if curve.objective == "output" else f"{curve.objective} loss"
    head = f"{curve.model}: {measured} {curve.full:.4f} with all heads; increase without / with refit"
    return [head, *aligned(rows, [False, *(True for _ in shares)])]


def _removed_table(plan: PrunePlan) -> list[str]:
    """Return one line per layer that loses heads: the heads, cheapest first, with their costs."""
    rows = [["layer", "removed", "cost"]]
    for stack, layer in sorted({(one.stack, one.layer) for one in plan.removed}):
        own = [one for one in plan.removed if (one.stack, one.layer) == (stack, layer)]
        name = f"L{layer}" if len(plan.stacks) == 1 else f"{stack}/L{layer}"
        costs = " ".join("-" if one.cost is None else f"{one.cost:.2g}" for one in own)
        rows.append([name, " ".join(f"H{one.head}" for one in own), costs])
    return aligned(rows, [False, False, False])


def _curve_panel(curve: LossCurve, title: str) -> Panel:
    """Return the mean loss over seeds at each share, a line per criterion, dashed without the refit.

    Where there are several seeds, bars reach from the lowest to the highest loss.
    """
    series: list[Series] = [Level(curve.full, label="full model", dash=":", hover="{y:.4f}")]
    for number, method in enumerate(dict.fromkeys(point.method for point in curve.points)):
        colour = GREY if method == "random" else COLOURS[number % len(COLOURS)]
        own = [point for point in curve.points if point.method == method]
        seeds = len({point.seed for point in own})
        label = f"{method} ({seeds} seeds)" if seeds > 1 else method
        symbol = SYMBOLS[number % len(SYMBOLS)]
        for refit in (True, False):
            losses: dict[float, list[float]] = {}
            for point in sorted(own, key=lambda point: point.share):
                if point.refit == refit:
                    losses.setdefault(100 * point.share, []).append(point.loss)
            if not losses:
                continue
            if seeds > 1:
                ends = [end for some in losses.values() for end in (min(some), max(some), None)]
                series.append(Line(np.repeat(list(losses), 3), ends, colour, width=1, group=label))
            hover = "{x:.1f}% removed: {y:.4f}" + ("" if refit else ", no refit")
            means, dash = [mean(some) for some in losses.values()], "-" if refit else "--"
            series.append(Line(list(losses), means, colour, label, dash=dash, symbol=symbol, hover=hover))
    loss = "squared error of the output" if curve.objective == "output" else f"{curve.objective} loss"
    note = "dashed: no refit; dotted: all heads"
    return Panel(title, series, Axis("share of heads removed, %", zero=True), Axis(loss), note=note)


def pruning_figure(curve: LossCurve) -> Drawing:
    """Draw the loss against the share of heads removed: a line per method, dashed without the refit."""
    panel = _curve_panel(curve, "\n".join(wrap(curve.model, 32)))
    few = len({point.method for point in curve.points}) < 5
    return drawn(Figure([panel], size=(COLUMN if few else PAGE, 3.2), legend="inside" if few else "beside"))


_CURVE_READING = (
    "Each curve shows the loss of the model without a growing share of its heads, chosen by one criterion; the "
    "dotted line is the full model. Solid curves refit the remaining heads, dashed ones do not. A criterion is "
    "worth its cost only where it stays below random choice."
)
_PLAN_READING = (
    "The dots are the heads that the plan removes, in the order in which they were chosen, with the cost that the "
    "criterion gave each of them at that moment."
)


def pruning_section(plan: PrunePlan | None = None, curve: LossCurve | None = None) -> Section:
    """Return the loss curve, the heads of a plan, or both.

    >>> from attngeo.applications.prune.curve import LossCurve, LossPoint
    >>> points = (LossPoint("refit", 4, 0.25, True, 3.1), LossPoint("refit", 8, 0.5, True, 3.4))
    >>> (figure,) = pruning_section(curve=LossCurve("model", "masked tokens", 3.0, points)).figures
    >>> figure.chart.panels[0].series[1].y
    [3.1, 3.4]
    """
    figures = []
    if curve is not None and curve.points:
        rows = [
            {
                "method": point.method,
                "heads removed": point.heads,
                "share": point.share,
                "refit": point.refit,
                "loss": point.loss,
                "seed": point.seed,
            }
            for point in curve.points
        ]
        name, count = short_name(curve.model), len({point.method for point in curve.points})
        label = f"Loss of {name} against the share of heads removed, by {count} criteria."
        figures.append(PageFigure("pruning-losses", label, Figure([_curve_panel(curve, name)], height=420), rows))
    if plan is not None:
        figures.append(_plan_figure(plan))
    readings = [_CURVE_READING] * (curve is not None) + [_PLAN_READING] * (plan is not None)
    notes = () if plan is None else plan.notes
    return Section("pruning", "Removing heads", " ".join(readings), tuple(figures), notes)


def _plan_figure(plan: PrunePlan) -> PageFigure:
    known = any(one.cost is not None for one in plan.removed)
    layers = [one.layer for one in plan.removed]
    dots = Points(
        list(range(1, len(layers) + 1)),
        [one.cost for one in plan.removed] if known else layers,
        size=8,
        edge=True,
        hover="{x}: {name}, " + ("cost {y:.3g}" if known else "layer {y}"),
        names=plan.labels,
        shade=layers,
        limits=(0, max([*layers, 1])),
        bar=Bar("layer", whole=True),
    )
    title = f"{len(layers)} of {plan.total} heads, by {plan.method}"
    panel = Panel(title, [dots], Axis("order of removal"), Axis("cost of the head" if known else "layer"))
    rows = [{"order": at} | asdict(one) for at, one in enumerate(plan.removed, 1)]
    label = f"Heads of {short_name(plan.model)} in the order in which the plan removes them, with their costs."
    return PageFigure("pruning-plan", label, Figure([panel], height=300), rows)
