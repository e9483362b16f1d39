"""Symmetry and directionality of every layer over training, with the null of random layers."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from attngeo.show.canvas import DASHED, GREY, new_figure, style_axes
from attngeo.weights.scoring.nulls.gaussian import gaussian_null
from experiments.initialisation.figures.styles import by_seed, curves, legend_below, seeds_text
from experiments.initialisation.runs import grouped

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from experiments.initialisation.runs import FinishedRun

_MAX_BANDS = 6  # the bands of more layers would cover one another
_PANELS = {"symmetry": "1 symmetric, −1 skew", "directionality": "below 0 columns dominate"}


def form_figure(runs: Sequence[FinishedRun]) -> Figure:
    """Return symmetry and directionality of every layer over training, one column per objective.

    Lines are means over seeds; bands, drawn for up to _MAX_BANDS layers, reach from the lowest seed to the highest. The
    grey band holds 95% of layers with random weights.
    """
    columns = sorted(grouped(runs, lambda run: run.cell.objective), key=lambda part: part[0].cell.objective != "masked")
    layers = len(runs[0].records[0]["symmetry"])
    figure = new_figure(4.8 * len(columns) + 0.8, 6.8)
    axes = figure.subplots(2, len(columns), squeeze=False, sharey="row", sharex="col")
    for column, part in zip(axes.T, columns, strict=True):
        for ax, (score, meaning) in zip(column, _PANELS.items(), strict=True):
            steps, values = curves(by_seed(part), score)  # [evaluations], [seeds, evaluations, layers]
            for layer in range(layers):
                _draw_layer(ax, steps, values[..., layer], layer, layers)
            _draw_null(ax, score, int(part[0].cell.size.partition("x")[2]))
            ax.set_ylabel(score)
            style_axes(ax)
            ax.set_title(meaning, loc="right", fontsize=8, color=GREY)
        kind = "encoder (masked)" if part[0].cell.objective == "masked" else "decoder (causal)"
        column[0].set_title(kind, loc="left", fontweight="bold", fontsize=10)
        column[0].text(0.02, 0.97, seeds_text(len(by_seed(part))), transform=column[0].transAxes, va="top", fontsize=8)
        column[1].set_xlabel("step")
    cell = runs[0].cell
    setting = ", ".join(filter(None, (f"{cell.start} initialisation", cell.size, f"lr {cell.lr:g}", cell.others)))
    if len({run.cell.seed for run in runs}) > 1:
        setting += f"; mean{' and range' if layers <= _MAX_BANDS else ''} of the seeds"
    figure.suptitle(fill(setting, 60 * len(columns)), fontsize=11)
    legend_below(figure, axes[0])
    return figure


def _draw_layer(ax: Axes, steps: NDArray[np.int64], values: NDArray[np.float64], layer: int, layers: int) -> None:
    """Draw one layer's values [seeds, evaluations] as their mean (a line) and their range (a band)."""
    from matplotlib import colormaps

    colour = colormaps["viridis"](0.9 * layer / max(1, layers - 1))  # from dark to light
    if layers <= _MAX_BANDS and len(values) > 1:
        ax.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0, zorder=2)
    ax.plot(steps, values.mean(0), color=colour, linewidth=1.6, zorder=3, label=f"layer {layer}")


def _draw_null(ax: Axes, score: str, width: int) -> None:
    """Draw the mean and the central 95% of a score for layer forms with independent Gaussian factors."""
    null = gaussian_null(width, width, width)  # the heads of a layer together have its width as rank
    mean, std = (null.symmetry_mean, null.symmetry_std) if score == "symmetry" else (0.0, null.directionality_std)
    ax.axhspan(mean - 1.96 * std, mean + 1.96 * std, color=GREY, alpha=0.15, linewidth=0, zorder=0,
               label="random layers: mean, 95%")  # fmt: skip
    ax.axhline(mean, color=GREY, linewidth=0.8, linestyle=DASHED, zorder=1)
