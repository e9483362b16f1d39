"""Figures of the initialisation experiment: losses, steps saved, and the QK form over training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attngeo.show.canvas import (
    BLACK,
    BLUE,
    DASHED,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    YELLOW,
    new_figure,
    panel_title,
    style_axes,
)
from experiments.initialisation.runs import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from experiments.initialisation.grid import Cell
    from experiments.initialisation.runs import FinishedRun
    from experiments.initialisation.statistics import Comparison

    RunsBySeed: TypeAlias = dict[int, FinishedRun]

Colour: TypeAlias = str | tuple[float, float, float, float]

# One colour and line style per initialisation, the same in every figure.
_STYLES = {
    "baseline": (BLACK, "-"),
    "symmetric": (SKY, "-"),
    "unit independent": (YELLOW, "-"),
    "unit symmetric": (BLUE, "-"),
    "authors": (GREEN, "-"),
    "mimetic-0.3": (PINK, "-"),
    "mimetic-0.7": (PINK, "--"),
    "mimetic-0.3-value": (ORANGE, "-"),
    "mimetic-0.7-value": (ORANGE, "--"),
    "unit rotated": (YELLOW, "--"),
    "unit self-attending": (GREEN, "--"),
    "unit skewed": (PINK, ":"),
    "unit negative": (ORANGE, ":"),
}
_MAX_BANDS = 6  # the bands of more layers would cover one another


def loss_figure(runs: Sequence[FinishedRun], against: str = "baseline") -> Figure:
    """Return the held-out loss over training, one column per setting, and below it the paired difference.

    Lines are means over seeds; bands reach from the lowest seed to the highest.
    against: the initialisation that the others are compared with
    """
    settings = sorted(grouped(runs, lambda run: run.cell.setting), key=lambda part: -part[0].cell.lr)
    figure = new_figure(4.6 * len(settings) + 0.6, 7.0)
    axes = figure.subplots(2, len(settings), squeeze=False, height_ratios=(3, 2))
    for (upper, lower), part in zip(axes.T, settings, strict=True):
        by_start = {same[0].cell.start: _by_seed(same) for same in grouped(part, lambda run: run.cell.start)}
        _draw_losses(upper, by_start)
        _draw_differences(lower, by_start, against)
        cell = part[0].cell
        _title_with_settings(upper, f"{cell.objective} {cell.size}, lr {cell.lr:g}", cell, 44)
        if any(len(seeds) > 1 for seeds in by_start.values()):
            panel_title(lower, "", "mean and range of the seeds")
        for ax in (upper, lower):
            style_axes(ax)
        if against not in by_start:
            lower.set_axis_off()
            lower.text(0.5, 0.5, f"{against} was not run here", ha="center", color=GREY, transform=lower.transAxes)
    _legend(figure, axes[0])
    return figure


def _draw_losses(ax: Axes, by_start: dict[str, RunsBySeed]) -> None:
    for start in sorted(by_start, key=_rank):
        steps, losses = _curves(by_start[start], "eval_loss")  # [evaluations], [seeds, evaluations]
        _draw_band(ax, steps, losses, start)
    runs = [run for seeds in by_start.values() for run in seeds.values()]
    lowest = min(run.loss for run in runs)
    first = max(run.records[0]["eval_loss"] for run in runs)
    # The fall of the first steps is the same for all; showing it would leave no room for the rest.
    ax.set_ylim(lowest - 0.03 * (first - lowest), lowest + 0.65 * (first - lowest))
    ax.set_ylabel("held-out loss (nats)")


def _draw_differences(ax: Axes, by_start: dict[str, RunsBySeed], against: str) -> None:
    reference = by_start.get(against, {})
    late: list[float] = []  # differences in the second half of training
    for start in sorted(by_start, key=_rank):
        both = sorted(set(by_start[start]) & set(reference))
        if both:
            steps, own_losses = _curves({seed: by_start[start][seed] for seed in both}, "eval_loss")
            _, reference_losses = _curves({seed: reference[seed] for seed in both}, "eval_loss")
            difference = own_losses - reference_losses  # [seeds, evaluations]
            _draw_band(ax, steps, difference, start)
            late += difference[:, len(steps) // 2 :].ravel().tolist()
    if late and min(late) < max(late):  # the differences of the first half would leave no room for these
        room = 0.4 * (max(late) - min(late))
        ax.set_ylim(min(late) - room, max(late) + room)
    ax.set_ylabel(f"minus {_reference_name(against)} (paired)")
    ax.set_xlabel("step")


def saved_figure(table: Sequence[Comparison]) -> Figure:
    """Return steps saved and difference in final loss with 95% intervals, one row per initialisation and setting."""
    rows = [comparison for comparison in table if comparison.saved is not None]
    groups = [(fill(group[0].cell.label, 36), group) for group in grouped(rows, lambda row: row.cell.setting)]
    figure = new_figure(11.0, 1.2 + 0.32 * (len(rows) + sum(1 + setting.count("\n") / 2 for setting, _ in groups)))
    axes = figure.subplots(1, 2, sharey=True)
    y = 0.0
    ticks: list[float] = []
    names: list[str] = []
    for setting, group in groups:
        if ticks:
            for ax in axes:
                ax.axhline(y - 0.75, color="#d0d0d0", linewidth=0.8)
        room = setting.count("\n") / 4  # each further line of the setting needs half a row, split above and below
        ticks.append(y + room)
        names.append(setting)
        y += 1 + 2 * room
        for row in sorted(group, key=lambda row: _rank(row.cell.start)):
            colour = _style(row.cell.start)[0]
            for ax, value in zip(axes, (row.saved, row.difference), strict=True):
                assert value is not None
                if len(row.seeds) > 1:
                    ax.plot([value.low, value.high], [y, y], color=colour, linewidth=1.6)
                # hollow where no seed reached the loss of the reference
                face = "white" if value is row.saved and not row.reached else colour
                ax.plot(value.mean, y, "o", color=colour, markerfacecolor=face, markersize=5)
            ticks.append(y)
            names.append(f"{row.cell.start} ({len(row.seeds)})")
            y += 1
    axes[0].set_yticks(ticks, names, fontsize=8)
    for label in axes[0].get_yticklabels():
        if label.get_text() in dict(groups):
            label.set_fontweight("bold")
    axes[0].set_ylim(y - 0.5, -0.6)
    axes[0].xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    for ax, title, note in zip(
        axes,
        ("steps saved", f"final loss minus {_reference_name(rows[0].against)}"),
        ("mean, 95% over seeds; hollow: never reached", "mean, 95% over seeds"),
        strict=True,
    ):
        ax.axvline(0, color=BLACK, linewidth=1)
        ax.locator_params(axis="x", nbins=6)
        panel_title(ax, title, note)
        style_axes(ax)
    return figure


def form_figure(runs: Sequence[FinishedRun]) -> Figure:
    """Return symmetry and directionality of every layer over training, one column per objective.

    Lines are means over seeds; bands, drawn for up to _MAX_BANDS layers, reach from the lowest seed to the highest.
    """
    columns = sorted(grouped(runs, lambda run: run.cell.objective), key=lambda part: part[0].cell.objective != "masked")
    layers = len(runs[0].records[0]["symmetry"])
    figure = new_figure(4.8 * len(columns) + 0.8, 6.6)
    axes = figure.subplots(2, len(columns), squeeze=False, sharey="row", sharex="col")
    for column, part in zip(axes.T, columns, strict=True):
        for ax, score, meaning in zip(
            column,
            ("symmetry", "directionality"),
            ("1 symmetric, −1 skew", "below 0 columns dominate"),
            strict=True,
        ):
            steps, values = _curves(_by_seed(part), score)  # [evaluations], [seeds, evaluations, layers]
            for layer in range(layers):
                style = (_depth_colour(layer, layers), "-")
                _draw_band(ax, steps, values[..., layer], f"layer {layer}", style, band=layers <= _MAX_BANDS)
            ax.axhline(0, color=GREY, linewidth=0.8, linestyle=DASHED, zorder=1)
            ax.set_ylabel(score)
            style_axes(ax)
            ax.set_title(meaning, loc="right", fontsize=8, color=GREY)
        kind = "encoder (masked)" if part[0].cell.objective == "masked" else "decoder (causal)"
        column[0].set_title(kind, loc="left", fontweight="bold", fontsize=10)
        column[1].set_xlabel("step")
    cell = runs[0].cell
    setting = ", ".join(filter(None, (f"{cell.start} initialisation", cell.size, f"lr {cell.lr:g}", cell.others)))
    if len({run.cell.seed for run in runs}) > 1:
        setting += f"; mean{' and range' if layers <= _MAX_BANDS else ''} of the seeds"
    figure.suptitle(fill(setting, 60 * len(columns)), fontsize=11)
    _legend(figure, axes[0])
    return figure


def _by_seed(runs: Iterable[FinishedRun]) -> RunsBySeed:
    return {run.cell.seed: run for run in runs}


def _curves(runs: RunsBySeed, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return steps [evaluations] and the values of a record at each, for every seed [seeds, evaluations, ...].

    Only evaluations at which all seeds have a value: logs hold the scores of layers at some evaluations only.
    """
    rows = [{record["step"]: record[name] for record in runs[seed].records if name in record} for seed in sorted(runs)]
    steps = sorted(set(rows[0]).intersection(*rows[1:]))
    return np.array(steps), np.array([[row[step] for step in steps] for row in rows])


def _draw_band(
    ax: Axes,
    steps: NDArray[np.int64],
    values: NDArray[np.float64],
    label: str,
    style: tuple[Colour, str] | None = None,
    band: bool = True,
) -> None:
    """Draw values [seeds, evaluations] as their mean (a line) and their range (a band)."""
    colour, line = style or _style(label)
    if band and len(values) > 1:
        ax.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0, zorder=2)
    ax.plot(steps, values.mean(0), line, color=colour, linewidth=1.6, zorder=3, label=label)


def _style(start: str) -> tuple[Colour, str]:
    """Return colour and line style; one that has none gets the colour of its unit-scale variant, dash-dotted."""
    variant = _STYLES.get(f"unit {start}", _STYLES.get(start.removeprefix("unit "), (GREY, "")))
    return _STYLES.get(start, (variant[0], "-."))


def _rank(start: str) -> int:
    """Return the position of an initialisation in legends and rows."""
    return list(_STYLES).index(start) if start in _STYLES else len(_STYLES)


def _depth_colour(layer: int, layers: int) -> Colour:
    """Return a colour from dark for the first layer to light for the last."""
    from matplotlib import colormaps

    colour: Colour = colormaps["viridis"](0.9 * layer / max(1, layers - 1))
    return colour


def _title_with_settings(ax: Axes, title: str, cell: Cell, width: int) -> None:
    """Set a title and, below it because it would not fit beside it, the settings other than the usual ones."""
    note = fill(cell.others, width)
    panel_title(ax, title + "\n" * (note.count("\n") + 1 if note else 0), note)


def _reference_name(start: str) -> str:
    return "the baseline's" if start == "baseline" else f"that of {start}"


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Draw one legend for all panels, below them, in rows of nearly equal length."""
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    rows = math.ceil(len(entries) / max(1, int(figure.get_figwidth() / 1.7)))
    columns = math.ceil(len(entries) / rows)
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
