"""What the scale of an initialisation does: final loss and end of the first plateau of both forms over the std."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attngeo.charts import GREY
from attngeo.show.matplotlib import DASHED, new_figure, panel_title, style_axes
from experiments.initialisation.figures.styles import seeds_text, style_of, title_with_settings
from experiments.initialisation.runs import PLATEAU_END
from experiments.initialisation.scales import FORMS, USUAL_STD, scales

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from experiments.initialisation.runs import FinishedRun
    from experiments.initialisation.scales import Scale

_ASIDE = (0.985, 1.015)  # factors by which the points of the two forms stand beside each other


def scale_figure(runs: Sequence[FinishedRun]) -> Figure:
    """Return the final loss, and the step at which the loss leaves its plateau, over the std of Q and K.

    Points are seeds, lines their means. A seed that does not leave the plateau has no point in the second panel, and
    where one of them does not, the mean is left out.
    """
    found, cell = scales(runs), runs[0].cell
    figure = new_figure(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    _draw(left, found, lambda run: run.loss)
    _draw(right, found, lambda run: run.first_below(PLATEAU_END))
    left.set_ylabel("final held-out loss (nats)")
    right.set_ylabel(f"first step with a loss below {PLATEAU_END:g}")
    title_with_settings(left, f"{cell.objective} {cell.size}, lr {cell.lr:g}", cell, 44)
    seeds = max(len(same) for scale in found for same in scale.runs.values())
    panel_title(right, "", f"{seeds_text(seeds)}: points and mean")
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xticks([scale.std for scale in found], [f"{scale.std:g}" for scale in found], minor=False)
        ax.minorticks_off()
        ax.set_xlabel("standard deviation of W_q and W_k")
        for std, name in ((USUAL_STD, "usual"), (cell.width**-0.5, "1/√d")):
            ax.axvline(std, color=GREY, linewidth=0.8, linestyle=DASHED, zorder=1)
            ax.annotate(name, (std, 1), (3, -2), xycoords=("data", "axes fraction"), textcoords="offset points",
                        va="top", fontsize=7, color=GREY)  # fmt: skip
        style_axes(ax)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _draw(ax: Axes, found: Sequence[Scale], measured: Callable[[FinishedRun], float | None]) -> None:
    """Draw a point per seed and a line through the means, for both forms."""
    for form, aside in zip(FORMS, _ASIDE, strict=True):
        colour, line, marker = style_of(f"unit {form}")
        means = {}
        for scale in found:
            values = [measured(run) for run in scale.runs[form]]
            known = [value for value in values if value is not None]
            ax.plot([scale.std * aside] * len(known), known, marker, color=colour, markersize=3.5, alpha=0.7, zorder=3)
            if known and len(known) == len(values):
                means[scale.std] = sum(known) / len(known)
        ax.plot(list(means), list(means.values()), line, color=colour, linewidth=1.6, zorder=2, label=form)
