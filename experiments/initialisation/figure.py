"""Final loss minus the baseline's for every architecture, each initialisation at its own best learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.charts import BLACK, BLUE, GREY, YELLOW
from attngeo.show.matplotlib import new_figure, panel_title, style_axes
from experiments.initialisation.own_rate import at_best_rates, best_rates
from experiments.initialisation.runs import grouped
from experiments.initialisation.statistics import compare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from experiments.initialisation.runs import FinishedRun
    from experiments.initialisation.statistics import Comparison

# Colour and marker of each initialisation that is shown, in the order of the legend.
_STYLES = {
    "unit independent": (YELLOW, "s"),
    "unit symmetric": (BLUE, "o"),
    "half-unit symmetric": ("#332288", "d"),
}
_ORDER = list(_STYLES)
_SPACING = 0.24  # between the initialisations of an architecture, which are 1 apart
_LINEAR = 0.1  # nats up to which the axis is linear; beyond, it is logarithmic


def architecture_figure(runs: Sequence[FinishedRun], against: str = "baseline") -> Figure:
    """Return a row per architecture, objective and size, with one interval per initialisation.

    Of several lengths of training the one in which `against` ends lowest is shown. Every initialisation has the
    learning rate that was best for it with the screening seed. A cross is a single seed, which has no interval.
    """
    rows = [row for part in _parts(runs, against) if (row := _row(part, against))[1]]
    figure = new_figure(9.0, 1.3 + 0.62 * len(rows))
    ax = figure.subplots()
    for place, (_, comparisons) in enumerate(rows):
        _draw_row(ax, place, comparisons)
    ax.axvline(0, color=BLACK, linewidth=1, zorder=1)
    ax.set_xscale("symlog", linthresh=_LINEAR, linscale=2.5)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "−"))
    ax.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    reference = "the baseline's" if against == "baseline" else f"that of {against}"
    ax.set_xlabel(f"final loss minus {reference} (nats); below 0 is better")
    style_axes(ax, grid="x")
    panel_title(ax, "", f"mean and 95% interval; linear within ±{_LINEAR:g}")
    for start in sorted({one.cell.start for _, comparisons in rows for one in comparisons}, key=_ORDER.index):
        colour, marker = _STYLES[start]
        ax.plot([], [], marker, color=colour, markersize=6, label=start)
    if any(len(one.seeds) == 1 for _, comparisons in rows for one in comparisons):
        ax.plot([], [], "x", color=GREY, markersize=6, markeredgewidth=1.8, label="a single seed, no interval")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _parts(runs: Sequence[FinishedRun], against: str) -> list[list[FinishedRun]]:
    """Return the runs of every architecture, objective and size, of the length that was best for `against`."""
    parts = []
    for part in grouped(sorted(runs, key=lambda run: run.cell.place), lambda run: (run.cell.place, run.cell.size)):
        if reference := [run for run in part if run.cell.start == against]:
            steps = min(reference, key=lambda run: run.loss).cell.steps
            parts.append([run for run in part if run.cell.steps == steps])
    return parts


def _row(runs: Sequence[FinishedRun], against: str) -> tuple[str, list[Comparison]]:
    """Return the label of a row, and its comparisons in the order of legends; none where nothing can be compared."""
    rates = best_rates(runs)
    if against not in rates:  # it was not run with the screening seed
        return "", []
    comparisons = [one for one in compare(at_best_rates(runs, against), against) if one.cell.start in _STYLES]
    comparisons = sorted((one for one in comparisons if one.difference), key=lambda one: _ORDER.index(one.cell.start))
    cell, seeds = runs[0].cell, max((len(one.seeds) for one in comparisons), default=0)
    shown = sorted({rates[one.cell.start] for one in comparisons} | {rates[against]})
    settings = f"lr {', '.join(f'{rate:g}' for rate in shown)}; {cell.steps:,} steps; {seeds} seed{'s' * (seeds != 1)}"
    return f"{cell.model}, {cell.objective}, {cell.size}\n{settings}", comparisons


def _draw_row(ax: Axes, place: int, comparisons: Sequence[Comparison]) -> None:
    """Draw the intervals of an architecture one below the other, centred on its place; a single seed as a cross."""
    for number, one in enumerate(comparisons):
        assert one.difference is not None
        y = place + _SPACING * (number - (len(comparisons) - 1) / 2)
        (colour, marker), value = _STYLES[one.cell.start], one.difference
        if len(one.seeds) > 1:
            ax.plot([value.low, value.high], [y, y], color=colour, linewidth=1.8, zorder=2)
            ax.plot(value.mean, y, marker, color=colour, markersize=6, zorder=3)
        else:
            ax.plot(value.mean, y, "x", color=colour, markersize=6, markeredgewidth=1.8, zorder=3)
