"""The figure of `docs/pruning.md`: the increase of the loss against the share of heads removed, a panel per model."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
from typing import TYPE_CHECKING

from attngeo.applications.prune.curve import SHARES
from attngeo.charts import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, YELLOW
from attngeo.show.matplotlib import DASHED, new_figure, panel_title, style_axes
from experiments.pruning.records import Record, Series
from experiments.pruning.table import RULE, SUBJECTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour and marker of each method; those that are left out are in the tables.
_STYLES = {
    RULE: (BLUE, "o"),
    "sensitivity": (SKY, "s"),
    "unexplained": (GREEN, "D"),
    "error": (YELLOW, "v"),
    "gradient": (ORANGE, "^"),
    "folders": (PINK, "P"),
    "entropy": (BLACK, "X"),
    "random": (GREY, "."),
}


def share_figure(records: Sequence[Record]) -> Figure:
    """Draw one panel per model: solid lines with the refit, dashed lines without it, on a logarithmic axis.

    Increases that are not above 0 are left out.
    """
    from matplotlib.lines import Line2D

    figure = new_figure(9.6, 6.2)
    axes = figure.subplots(2, 3).flatten()
    for ax, (subject, name) in zip(axes, SUBJECTS.items(), strict=False):
        _panel(ax, records, subject, name)
    axes[-1].axis("off")
    lines = [Line2D([], [], color=c, marker=m, markersize=5, label=name) for name, (c, m) in _STYLES.items()]
    lines += [Line2D([], [], color=GREY, label="with refit")]
    lines += [Line2D([], [], color=GREY, linestyle=DASHED, label="without refit")]
    axes[-1].legend(handles=lines, loc="center", frameon=False, fontsize=9)
    return figure


def _panel(ax: Axes, records: Sequence[Record], subject: str, name: str) -> None:
    series = Series(subject)
    for method, (colour, marker) in _STYLES.items():
        for refit in (False, True):
            found = [series.increase(records, method, share, refit) for share in SHARES]
            values = [nan if value is None or value <= 0 else value for value in found]  # breaks the line
            if not all(map(isnan, values)):
                ax.plot(
                    SHARES, values, color=colour, marker=marker, markersize=4, linewidth=1.6 if refit else 1,
                    linestyle="-" if refit else DASHED, alpha=1 if refit else 0.7, zorder=3 if method == RULE else 2,
                )  # fmt: skip
    ax.set_yscale("log")
    ax.set_xlim(min(SHARES) - 0.03, max(SHARES) + 0.03)
    ax.set_xticks(SHARES)
    ax.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    ax.set_xlabel("share of heads removed")
    ax.set_ylabel("1 − Spearman correlation" if subject == "minilm" else "increase of the loss [nats]")
    panel_title(ax, name)
    style_axes(ax)
