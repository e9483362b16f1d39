"""Pictures of the initialisation experiment; like the others, without matplotlib's global state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

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
from experiments.initialisation.table import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from experiments.initialisation.grid import Cell
    from experiments.initialisation.statistics import Compared, Finished

# One colour and line style per initialisation, the same in every figure.
_LOOKS = {
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
_BANDS = 6  # of more layers they would cover one another

Runs = dict[int, "Finished"]  # by seed


def loss_figure(runs: Sequence[Finished], against: str = "baseline") -> Figure:
    """Held-out loss over training, one panel a setting; under it the paired difference from the baseline, or another.

    Lines are means over seeds, bands reach from the lowest seed to the highest.
    """
    panels = sorted(grouped(runs, lambda run: run.cell.setting), key=lambda part: -part[0].cell.lr)
    figure = new_figure(4.6 * len(panels) + 0.6, 7.0)
    axes = figure.subplots(2, len(panels), squeeze=False, height_ratios=(3, 2))
    for (whole, apart), mine in zip(axes.T, panels, strict=True):
        starts = {part[0].cell.start: _by_seed(part) for part in grouped(mine, lambda run: run.cell.start)}
        base = starts.get(against, {})
        settled: list[float] = []  # differences of the second half: those of the first would leave no room for them
        for start in sorted(starts, key=_place):
            steps, losses = _curves(starts[start], "eval_loss")  # [evaluations], [seeds, evaluations]
            _band(whole, steps, losses, start)
            both = sorted(set(starts[start]) & set(base))
            if both:
                _, mine_paired = _curves({seed: starts[start][seed] for seed in both}, "eval_loss")
                _, base_paired = _curves({seed: base[seed] for seed in both}, "eval_loss")
                difference = mine_paired - base_paired
                _band(apart, steps, difference, start)
                settled += difference[:, len(steps) // 2 :].ravel().tolist()
        lowest = min(run.loss for run in mine)
        first = max(run.records[0]["eval_loss"] for run in mine)
        # The fall of the first steps is the same for all and would leave no room for the rest.
        whole.set_ylim(lowest - 0.03 * (first - lowest), lowest + 0.65 * (first - lowest))
        if settled and min(settled) < max(settled):
            room = 0.4 * (max(settled) - min(settled))
            apart.set_ylim(min(settled) - room, max(settled) + room)
        cell = mine[0].cell
        _title(whole, f"{cell.objective} {cell.size}, lr {cell.lr:g}", cell, 44)
        if any(len(found) > 1 for found in starts.values()):
            panel_title(apart, "", "mean and range of the seeds")
        whole.set_ylabel("held-out loss (nats)")
        apart.set_ylabel(f"less {_whose(against)} (paired)")
        apart.set_xlabel("step")
        for ax in (whole, apart):
            style_axes(ax)
        if not base:
            apart.set_axis_off()
            apart.text(0.5, 0.5, f"{against} was not run here", ha="center", color=GREY, transform=apart.transAxes)
    _legend(figure, axes[0])
    return figure


def saved_figure(table: Sequence[Compared]) -> Figure:
    """Steps saved and difference in final loss with 95% intervals, one line a start, settings one under the other."""
    rows = [one for one in table if one.saved is not None]
    groups = [(fill(group[0].cell.label, 36), group) for group in grouped(rows, lambda one: one.cell.setting)]
    figure = new_figure(11.0, 1.2 + 0.32 * (len(rows) + sum(1 + setting.count("\n") / 2 for setting, _ in groups)))
    axes = figure.subplots(1, 2, sharey=True)
    height = 0.0
    ticks: list[float] = []
    names: list[str] = []
    for setting, group in groups:
        if ticks:
            for ax in axes:
                ax.axhline(height - 0.75, color="#d0d0d0", linewidth=0.8)
        room = setting.count("\n") / 4  # half a row a line more, above and below
        ticks.append(height + room)
        names.append(setting)
        height += 1 + 2 * room
        for one in sorted(group, key=lambda one: _place(one.cell.start)):
            colour = _look(one.cell.start)[0]
            for ax, found in zip(axes, (one.saved, one.difference), strict=True):
                assert found is not None
                if len(one.seeds) > 1:
                    ax.plot([found.low, found.high], [height, height], color=colour, linewidth=1.6)
                # hollow where no seed reached the baseline's loss
                face = "white" if found is one.saved and not one.reached else colour
                ax.plot(found.mean, height, "o", color=colour, markerfacecolor=face, markersize=5)
            ticks.append(height)
            names.append(f"{one.cell.start} ({len(one.seeds)})")
            height += 1
    axes[0].set_yticks(ticks, names, fontsize=8)
    for label in axes[0].get_yticklabels():
        if label.get_text() in dict(groups):
            label.set_fontweight("bold")
    axes[0].set_ylim(height - 0.5, -0.6)
    axes[0].xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    for ax, words, note in zip(
        axes,
        ("steps saved", f"final loss less {_whose(rows[0].against)}"),
        ("mean, 95% over seeds; hollow: never reached", "mean, 95% over seeds"),
        strict=True,
    ):
        ax.axvline(0, color=BLACK, linewidth=1)
        ax.locator_params(axis="x", nbins=6)
        panel_title(ax, words, note)
        style_axes(ax)
    return figure


def form_figure(runs: Sequence[Finished]) -> Figure:
    """Symmetry and directionality of every layer over training, encoder beside decoder where both were trained.

    Lines are means over seeds, bands, where there are few layers, reach from the lowest seed to the highest.
    """
    columns = sorted(grouped(runs, lambda run: run.cell.objective), key=lambda part: part[0].cell.objective != "masked")
    layers = len(runs[0].records[0]["symmetry"])
    figure = new_figure(4.8 * len(columns) + 0.8, 6.6)
    axes = figure.subplots(2, len(columns), squeeze=False, sharey="row", sharex="col")
    for column, mine in zip(axes.T, columns, strict=True):
        for ax, score, meaning in zip(
            column,
            ("symmetry", "directionality"),
            ("1 symmetric, −1 skew", "below 0 columns dominate"),
            strict=True,
        ):
            steps, values = _curves(_by_seed(mine), score)  # [evaluations], [seeds, evaluations, layers]
            for layer in range(layers):
                look = (_depth(layer, layers), "-")
                _band(ax, steps, values[..., layer], f"layer {layer}", look, band=layers <= _BANDS)
            ax.axhline(0, color=GREY, linewidth=0.8, linestyle=DASHED, zorder=1)
            ax.set_ylabel(score)
            style_axes(ax)
            ax.set_title(meaning, loc="right", fontsize=8, color=GREY)
        kind = "encoder (masked)" if mine[0].cell.objective == "masked" else "decoder (causal)"
        column[0].set_title(kind, loc="left", fontweight="bold", fontsize=10)
        column[1].set_xlabel("step")
    cell = runs[0].cell
    setting = ", ".join(filter(None, (f"{cell.start} start", cell.size, f"lr {cell.lr:g}", cell.others)))
    if len({run.cell.seed for run in runs}) > 1:
        setting += f"; mean{' and range' if layers <= _BANDS else ''} of the seeds"
    figure.suptitle(fill(setting, 60 * len(columns)), fontsize=11)
    _legend(figure, axes[0])
    return figure


def _by_seed(runs: Iterable[Finished]) -> Runs:
    return {run.cell.seed: run for run in runs}


def _curves(runs: Runs, name: str) -> tuple[Any, Any]:
    """Steps [evaluations] and a record over them for every seed [seeds, evaluations, …]."""
    some = next(iter(runs.values()))
    steps = np.array([record["step"] for record in some.records])
    return steps, np.array([[record[name] for record in runs[seed].records] for seed in sorted(runs)])


def _band(
    ax: Axes, steps: Any, values: Any, label: str, look: tuple[Any, str] | None = None, band: bool = True
) -> None:
    """values [seeds, evaluations] as their mean and their range."""
    colour, stroke = look or _look(label)
    if band and len(values) > 1:
        ax.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0, zorder=2)
    ax.plot(steps, values.mean(0), stroke, color=colour, linewidth=1.6, zorder=3, label=label)


def _look(start: str) -> tuple[str, str]:
    """Colour and stroke; a start of no figure so far is drawn as its unit-scale kin, dash-dotted."""
    kin = _LOOKS.get(f"unit {start}", _LOOKS.get(start.removeprefix("unit "), (GREY, "")))
    return _LOOKS.get(start, (kin[0], "-."))


def _place(start: str) -> int:
    return list(_LOOKS).index(start) if start in _LOOKS else len(_LOOKS)


def _depth(layer: int, layers: int) -> Any:
    """From dark at the first layer to light at the last."""
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * layer / max(1, layers - 1))


def _title(ax: Axes, words: str, cell: Cell, width: int) -> None:
    """Words, and under them, for they would not fit beside, the settings that are not the usual ones."""
    note = fill(cell.others, width)
    panel_title(ax, words + "\n" * (note.count("\n") + 1 if note else 0), note)


def _whose(start: str) -> str:
    return "the baseline's" if start == "baseline" else f"that of {start}"


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One for all panels, under them."""
    found = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    rows = math.ceil(len(found) / max(1, int(figure.get_figwidth() / 1.7)))
    columns = math.ceil(len(found) / rows)  # rows as equal as can be
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
