"""Pruning as text and figure: which heads went, what it cost, and the loss against the share of heads removed."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from attngeo.show.canvas import (
    COLOURS,
    COLUMN,
    DASHED,
    GREY,
    LIGHT_GREY,
    PAGE,
    for_print,
    new_figure,
    panel_title,
    style_axes,
)
from attngeo.show.tables import aligned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attngeo.applications.prune.curve import LossCurve
    from attngeo.applications.prune.plan import PrunePlan


def pruning_report(plan: PrunePlan, curve: LossCurve) -> str:
    """Return which heads each layer loses, and a table of losses by method and share."""
    lines = [str(plan).partition(":")[0], *plan.notes, "", *_removed_table(plan), "", *loss_table(curve)]
    return "\n".join(lines) + "\n"


def loss_table(curve: LossCurve) -> list[str]:
    """Return the lines of a table: one row per method, the increase of the loss without / with refit per share."""
    shares = sorted({round(point.share, 3) for point in curve.points})
    rows = [["method", *(f"{share:.0%}" for share in shares)]]
    for method in dict.fromkeys(point.method for point in curve.points):
        cells = []
        for share in shares:
            own = [point for point in curve.points if point.method == method and round(point.share, 3) == share]
            parts = [[one.loss - curve.full for one in own if one.refit == refit] for refit in (False, True)]
            cells.append(" / ".join(f"{sum(part) / len(part):+.3f}" for part in parts if part) or "-")
        rows.append([method, *cells])
    measured = {"output": "squared error relative to the output"}.get(curve.objective, f"{curve.objective} loss")
    head = f"{curve.model}: {measured} {curve.full:.4f} with all heads; increase without / with refit"
    return [head, *aligned(rows, [False, *(True for _ in shares)])]


def _removed_table(plan: PrunePlan) -> list[str]:
    """Return one line per layer that loses heads: the heads, cheapest first, with their costs."""
    rows = [["layer", "removed", "cost"]]
    layers = dict.fromkeys((one.stack, one.layer) for one in plan.removed)
    for stack, layer in sorted(layers):
        own = [one for one in plan.removed if (one.stack, one.layer) == (stack, layer)]
        name = f"L{layer}" if len(plan.stacks) == 1 else f"{stack}/L{layer}"
        costs = " ".join("-" if one.cost is None else f"{one.cost:.2g}" for one in own)
        rows.append([name, " ".join(f"H{one.head}" for one in own), costs])
    return aligned(rows, [False, False, False])


@for_print
def pruning_figure(curve: LossCurve) -> Figure:
    """Draw the loss against the share of heads removed: a line per method, dashed without the refit."""
    methods = list(dict.fromkeys(point.method for point in curve.points))
    figure = new_figure(COLUMN if len(methods) < 5 else PAGE, 3.2)
    ax = figure.subplots()
    ax.axhline(curve.full, color=LIGHT_GREY, linewidth=1)
    for index, method in enumerate(methods):
        style: dict[str, Any] = {
            "color": GREY if method == "random" else COLOURS[index % len(COLOURS)],
            "linewidth": 1.1,
        }
        style |= {"marker": "osD^v<>*hX"[index % 10], "markersize": 3}
        seeds = 1
        for refit in (False, True):
            own = [point for point in curve.points if point.method == method and point.refit == refit]
            shares = sorted({point.share for point in own})
            means = [_mean([point.loss for point in own if point.share == share]) for share in shares]
            seeds = max([seeds, *(sum(point.share == share for point in own) for share in shares)])
            if own:
                ax.plot(shares, means, linestyle="-" if refit else DASHED, **style)
        ax.plot([], [], label=f"{method} ({seeds} seeds)" if seeds > 1 else method, **style)
    ax.set_xlabel("share of heads removed")
    ax.set_ylabel(f"{curve.objective} loss" if curve.objective != "output" else "squared error of the output")
    ax.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    panel_title(ax, "\n".join(wrap(curve.model, 32)), "dashed: no refit; grey line: all heads")
    style_axes(ax)
    if len(methods) < 5:
        ax.legend(frameon=False)
    else:
        figure.legend(loc="outside right center", frameon=False)
    return figure


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
