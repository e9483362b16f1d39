"""Steps saved and difference in final loss with 95% intervals, one panel per setting."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from attngeo.charts import BLACK, GREY
from attngeo.show.matplotlib import new_figure, panel_title, style_axes
from experiments.initialisation.figures.styles import draw_estimate, rank, reference_name, seeds_text, signed_number
from experiments.initialisation.runs import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from experiments.initialisation.statistics import Comparison, Estimate

_ROW, _TITLE = 0.27, 0.62  # inches: of one initialisation, and of a setting's title and axis


def saved_figure(table: Sequence[Comparison]) -> Figure:
    """Return steps saved and difference in final loss, a row of panels per setting and a row per initialisation.

    Every setting has its own axis of differences, so that small intervals can be seen beside large ones. A cross is a
    single seed, which has no interval.
    """
    rows = [comparison for comparison in table if comparison.saved is not None]
    groups = grouped(rows, lambda row: row.cell.setting)
    heights = [_TITLE + _ROW * len(group) + 0.16 * fill(group[0].cell.label, 60).count("\n") for group in groups]
    figure = new_figure(10.0, sum(heights) + 0.9)
    axes = figure.subplots(len(groups), 2, squeeze=False, height_ratios=heights, width_ratios=(1, 1))
    for (left, right), group in zip(axes, groups, strict=True):
        group = sorted(group, key=lambda row: rank(row.cell.start))
        _draw_setting(left, right, group)
        panel_title(left, fill(group[0].cell.label, 60))
        left.set_xlim(_limits([row.saved for row in rows]))
        left.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}".replace("-", "−"))
        right.xaxis.set_major_formatter(signed_number)
        right.locator_params(axis="x", nbins=6)
        for ax in (left, right):
            ax.axvline(0, color=BLACK, linewidth=1, zorder=1)
            style_axes(ax, grid="x")
    axes[-1][0].set_xlabel("steps saved")
    axes[-1][1].set_xlabel(f"final loss minus {reference_name(rows[0].against)} (nats)")
    panel_title(axes[0][1], "", "each setting has its own axis")
    for label, mark in (("mean over seeds and 95% interval", "o"), ("a single seed, no interval", "x")):
        axes[0][0].plot([], [], mark, color=GREY, markersize=6, label=label)
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9
    )
    return figure


def _draw_setting(left: Axes, right: Axes, group: Sequence[Comparison]) -> None:
    for y, row in enumerate(group):
        if row.reached:
            draw_estimate(left, y, row, row.saved)
        else:
            left.annotate(
                "not reached", (0, y), (5, 0), textcoords="offset points", va="center", fontsize=8, color=GREY
            )
        draw_estimate(right, y, row, row.difference)
    names = [f"{row.cell.start} ({seeds_text(len(row.seeds))})" for row in group]
    left.set_yticks(range(len(group)), names, fontsize=8)
    right.set_yticks(range(len(group)), [""] * len(group))
    for ax in (left, right):
        ax.set_ylim(len(group) - 0.4, -0.6)


def _limits(values: Sequence[Estimate | None]) -> tuple[float, float]:
    """Return limits that hold 0, all means and all intervals."""
    known = [end for value in values if value is not None for end in (value.low, value.mean, value.high) if end == end]
    low, high = min(0.0, *known), max(0.0, *known)
    margin = 0.04 * (high - low) or 0.01
    return low - margin, high + margin
