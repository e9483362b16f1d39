"""The held-out loss over training, one line per seed, and its paired difference from a reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from attngeo.charts import GREY
from attngeo.show.matplotlib import new_figure, panel_title, style_axes
from experiments.initialisation.figures.styles import (
    LINEAR,
    by_seed,
    curves,
    legend_below,
    rank,
    reference_name,
    signed_number,
    style_of,
    title_with_settings,
)
from experiments.initialisation.runs import grouped

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from experiments.initialisation.figures.styles import RunsBySeed
    from experiments.initialisation.runs import FinishedRun

    RunsByStart: TypeAlias = dict[str, RunsBySeed]


def loss_figure(runs: Sequence[FinishedRun], against: str = "baseline") -> Figure:
    """Return the held-out loss over training, one column per setting, and below it the paired difference.

    Each line is one seed: some seeds of an initialisation leave a plateau that others do not leave, and a mean of the
    two would be a curve that no run has. The legend gives the number of seeds in each column.
    against: the initialisation that the others are compared with
    """
    settings = sorted(grouped(runs, lambda run: run.cell.setting), key=lambda part: -part[0].cell.lr)
    columns = [
        {same[0].cell.start: by_seed(same) for same in grouped(part, lambda run: run.cell.start)} for part in settings
    ]
    figure = new_figure(4.6 * len(settings) + 0.6, 7.4)
    axes = figure.subplots(2, len(settings), squeeze=False, height_ratios=(3, 2))
    labels = _labels(columns)
    for (upper, lower), part, by_start in zip(axes.T, settings, columns, strict=True):
        _draw_losses(upper, by_start, labels)
        _draw_differences(lower, by_start, labels, against)
        cell = part[0].cell
        title_with_settings(upper, f"{cell.objective} {cell.size}, lr {cell.lr:g}", cell, 44)
        for ax in (upper, lower):
            style_axes(ax)
        if against not in by_start:
            lower.set_axis_off()
            lower.text(0.5, 0.5, f"{against} was not run here", ha="center", color=GREY, transform=lower.transAxes)
    legend_below(
        figure, axes[0], 2.5, "one line per seed; number of seeds, column by column" if len(columns) > 1 else ""
    )
    return figure


def _labels(columns: Sequence[RunsByStart]) -> dict[str, str]:
    """Return the label of each initialisation: its name and its number of seeds, column by column where they differ."""
    starts = sorted({start for by_start in columns for start in by_start}, key=rank)
    labels = {}
    for start in starts:
        counts = [len(by_start.get(start, {})) for by_start in columns]
        shown = str(counts[0]) if len(set(counts)) == 1 else ", ".join(map(str, counts))
        labels[start] = f"{start} ({shown} seed{'' if shown == '1' else 's'})"
    return labels


def _draw_losses(ax: Axes, by_start: RunsByStart, labels: dict[str, str]) -> None:
    for start in sorted(by_start, key=rank):
        for seed in sorted(by_start[start]):
            steps, losses = curves({seed: by_start[start][seed]}, "eval_loss")  # [evaluations], [1, evaluations]
            _draw_line(ax, steps, losses[0], start, labels[start])
    runs = [run for seeds in by_start.values() for run in seeds.values()]
    lowest = min(record["eval_loss"] for run in runs for record in run.records)  # a loss may rise again
    first = max(run.records[0]["eval_loss"] for run in runs)
    # The fall of the first steps is the same for all; showing it would leave no room for the rest.
    ax.set_ylim(lowest - 0.03 * (first - lowest), lowest + 0.65 * (first - lowest))
    ax.set_ylabel("held-out loss (nats)")


def _draw_differences(ax: Axes, by_start: RunsByStart, labels: dict[str, str], against: str) -> None:
    """Draw the difference of each seed from the same seed of the reference, all of it: no curve leaves the panel."""
    reference = by_start.get(against, {})
    largest = 0.0
    for start in sorted(by_start, key=rank):
        for seed in sorted(set(by_start[start]) & set(reference)):
            pair = {0: reference[seed], 1: by_start[start][seed]}  # one of them may end earlier, at `until_loss`
            steps, losses = curves(pair, "eval_loss")  # [evaluations], [2, evaluations]
            difference = losses[1] - losses[0]
            _draw_line(ax, steps, difference, start, labels[start])
            largest = max(largest, float(abs(difference).max()))
    if largest > LINEAR:
        ax.set_yscale("symlog", linthresh=LINEAR, linscale=0.8)
        ax.yaxis.set_major_formatter(signed_number)
    panel_title(ax, "", "paired by seed" + f"; linear within ±{LINEAR:g}" * (largest > LINEAR))
    ax.margins(y=0.08)
    ax.set_ylabel(f"minus {reference_name(against)} (nats)")
    ax.set_xlabel("step")


def _draw_line(ax: Axes, steps: NDArray[np.int64], values: NDArray[np.float64], start: str, label: str) -> None:
    """Draw the values [evaluations] of one seed as a thin line."""
    colour, line, _ = style_of(start)
    ax.plot(steps, values, line, color=colour, linewidth=1.1, alpha=0.85, zorder=3, label=label)
