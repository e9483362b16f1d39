"""Symmetry and directionality of every layer over training, with the null of random layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

from attngeo.charts import GREY
from attngeo.show.matplotlib import DASHED, new_figure, style_axes
from attngeo.weights.scoring.gaussian_null import GaussianNull, gaussian_null, rotary_null
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


@dataclass(frozen=True)
class _Column:
    """The runs of one architecture and objective, at offset 0 or averaged over all offsets."""

    runs: Sequence[FinishedRun]
    is_average: bool = False

    @property
    def title(self) -> str:
        cell = self.runs[0].cell
        kind = "encoder (masked)" if cell.objective == "masked" else "decoder (causal)"
        if not _rotates(self.runs):
            return f"{cell.model}, {kind}"
        return f"{cell.model}, {kind}\n{'average over all offsets' if self.is_average else 'at offset 0'}"

    def score(self, name: str) -> str:
        """Return the name of a score in the records."""
        return f"{name}_rope" if self.is_average else name

    @property
    def null(self) -> GaussianNull:
        """The null of layers with independent Gaussian factors; all heads together have the width as rank."""
        width = self.runs[0].cell.width
        if not self.is_average:
            return gaussian_null(width, width, width)
        heads = len(self.runs[0].records[0]["head_symmetry"][0])
        return rotary_null(width, width, heads, width // heads // 2, 0)


def form_figure(runs: Sequence[FinishedRun]) -> Figure:
    """Return symmetry and directionality of every layer over training, one column per architecture and objective.

    A model with rotary embedding has two columns: at offset 0, and averaged over all offsets. Lines are means over
    seeds; bands, drawn for up to _MAX_BANDS layers, reach from the lowest seed to the highest. The grey band holds 95%
    of layers with random weights.
    """
    columns = list(_columns(runs))
    layers = len(runs[0].records[0]["symmetry"])
    figure = new_figure(4.8 * len(columns) + 0.8, 6.8)
    axes = figure.subplots(2, len(columns), squeeze=False, sharey="row", sharex="col")
    for part, column in zip(axes.T, columns, strict=True):
        for ax, (score, meaning) in zip(part, _PANELS.items(), strict=True):
            # [evaluations], [seeds, evaluations, layers]
            steps, values = curves(by_seed(column.runs), column.score(score))
            for layer in range(layers):
                _draw_layer(ax, steps, values[..., layer], layer, layers)
            _draw_null(ax, score, column.null)
            ax.set_ylabel(score)
            style_axes(ax)
            ax.set_title(meaning, loc="right", fontsize=8, color=GREY)
        part[0].set_title(column.title, loc="left", fontweight="bold", fontsize=10)
        seeds = seeds_text(len(by_seed(column.runs)))
        part[0].text(0.02, 0.97, seeds, transform=part[0].transAxes, va="top", fontsize=8)
        part[1].set_xlabel("step")
    cell = runs[0].cell.without_model()
    setting = ", ".join(filter(None, (f"{cell.start} initialisation", cell.size, f"lr {cell.lr:g}", cell.others)))
    if len({run.cell.seed for run in runs}) > 1:
        setting += f"; mean{' and range' if layers <= _MAX_BANDS else ''} of the seeds"
    figure.suptitle(fill(setting, 60 * len(columns)), fontsize=11)
    legend_below(figure, axes[0])
    return figure


def _columns(runs: Sequence[FinishedRun]) -> Iterator[_Column]:
    """Yield the columns in their order; a rotary model has two."""
    for part in grouped(sorted(runs, key=lambda run: run.cell.place), lambda run: run.cell.place):
        yield _Column(part)
        if _rotates(part):
            yield _Column(part, is_average=True)


def _rotates(runs: Sequence[FinishedRun]) -> bool:
    return all("symmetry_rope" in run.records[0] for run in runs)


def _draw_layer(ax: Axes, steps: NDArray[np.int64], values: NDArray[np.float64], layer: int, layers: int) -> None:
    """Draw one layer's values [seeds, evaluations] as their mean (a line) and their range (a band)."""
    from matplotlib import colormaps

    colour = colormaps["viridis"](0.9 * layer / max(1, layers - 1))  # from dark to light
    if layers <= _MAX_BANDS and len(values) > 1:
        ax.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0, zorder=2)
    ax.plot(steps, values.mean(0), color=colour, linewidth=1.6, zorder=3, label=f"layer {layer}")


def _draw_null(ax: Axes, score: str, null: GaussianNull) -> None:
    """Draw the mean and the central 95% of a score for layers with random weights."""
    mean, std = (null.symmetry_mean, null.symmetry_std) if score == "symmetry" else (0.0, null.directionality_std)
    ax.axhspan(mean - 1.96 * std, mean + 1.96 * std, color=GREY, alpha=0.15, linewidth=0, zorder=0,
               label="random layers: mean, 95%")  # fmt: skip
    ax.axhline(mean, color=GREY, linewidth=0.8, linestyle=DASHED, zorder=1)
