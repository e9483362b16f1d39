"""Colour, line and marker of every initialisation, curves and means of several seeds, titles and legends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attngeo.charts import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, YELLOW
from attngeo.show.matplotlib import panel_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from experiments.initialisation.grid import Cell
    from experiments.initialisation.runs import FinishedRun
    from experiments.initialisation.statistics import Comparison, Estimate

    RunsBySeed: TypeAlias = dict[int, FinishedRun]

# Colour, line style and marker of each initialisation, the same in every figure; no two have the same colour. The
# colours behind those of Okabe and Ito are mostly from the muted scheme of Paul Tol.
STYLES = {
    "baseline": (BLACK, "-", "o"),
    "symmetric": (SKY, "-", "o"),
    "unit independent": (YELLOW, "-", "s"),
    "unit symmetric": (BLUE, "-", "o"),
    "authors": (GREEN, "-", "D"),
    "mimetic-0.3": (PINK, "-", "^"),
    "mimetic-0.7": ("#882255", "--", "v"),
    "mimetic-0.3-value": (ORANGE, "-", "<"),
    "mimetic-0.7-value": ("#661100", "--", ">"),
    "unit rotated": ("#999933", "--", "P"),
    "unit self-attending": ("#44AA99", "--", "X"),
    "unit skewed": ("#AA4499", ":", "p"),
    "unit negative": ("#CC6677", "-.", "h"),
    "half-unit symmetric": ("#332288", "-.", "d"),
    "unit indefinite": ("#117733", "-.", "*"),
    "unit small-skewed": ("#EE3377", "-.", "H"),
    "unit large-symmetric": ("#00BBCC", "-.", "8"),
    "unit independent with self-bias": ("#A0522D", "-.", "."),
}
_UNKNOWN = (GREY, "-.", "o")
LINEAR = 0.1  # nats up to which an axis of differences is linear; beyond, it is logarithmic


def style_of(start: str) -> tuple[str, str, str]:
    """Return colour, line style and marker of an initialisation; grey for one that is not listed."""
    return STYLES.get(start, _UNKNOWN)


def rank(start: str) -> int:
    """Return the position of an initialisation in legends and rows."""
    return list(STYLES).index(start) if start in STYLES else len(STYLES)


def by_seed(runs: Iterable[FinishedRun]) -> RunsBySeed:
    """Return the runs of one cell by seed."""
    return {run.cell.seed: run for run in runs}


def curves(runs: RunsBySeed, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return steps [evaluations] and the values of a record at each, for every seed [seeds, evaluations, ...].

    Only evaluations at which all seeds have a value: logs hold the scores of layers at some evaluations only.
    """
    rows = [{record["step"]: record[name] for record in runs[seed].records if name in record} for seed in sorted(runs)]
    steps = sorted(set(rows[0]).intersection(*rows[1:]))
    return np.array(steps), np.array([[row[step] for step in steps] for row in rows])


def seeds_text(count: int) -> str:
    """Return a number of seeds in words."""
    return f"{count} seed{'' if count == 1 else 's'}"


def draw_estimate(ax: Axes, y: float, row: Comparison, value: Estimate | None) -> None:
    """Draw a mean over the seeds of a comparison with its interval, or a cross where a single seed has none."""
    assert value is not None
    colour, _, marker = style_of(row.cell.start)
    if len(row.seeds) > 1:
        ax.plot([value.low, value.high], [y, y], color=colour, linewidth=1.8, zorder=2)
        ax.plot(value.mean, y, marker, color=colour, markersize=6, zorder=3)
    else:
        ax.plot(value.mean, y, "x", color=colour, markersize=6, markeredgewidth=1.8, zorder=3)


def signed_number(value: float, _: object = None) -> str:
    """Return a number for a tick of an axis, with a minus sign; the second argument is its position.

    >>> signed_number(-0.5, 0)
    '−0.5'
    """
    return f"{value:g}".replace("-", "−")


def title_with_settings(ax: Axes, title: str, cell: Cell, width: int) -> None:
    """Set a title and, below it because it would not fit beside it, the settings other than the usual ones."""
    note = fill(cell.others, width)
    panel_title(ax, title + "\n" * (note.count("\n") + 1 if note else 0), note)


def reference_name(start: str) -> str:
    """Return whose loss differences are taken from."""
    return "the baseline's" if start == "baseline" else f"that of {start}"


def legend_below(figure: Figure, axes: Sequence[Axes], width: float = 1.9, title: str = "") -> None:
    """Draw one legend for all panels, below them, in rows of nearly equal length.

    width: of an entry, in inches
    """
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    rows = math.ceil(len(entries) / max(1, int(figure.get_figwidth() / width)))
    columns = math.ceil(len(entries) / rows)
    legend = figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    if title:
        legend.set_title(title)
        legend.get_title().set_fontsize(8)
