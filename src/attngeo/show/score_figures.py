"""Figures of scores: symmetry and directionality of each layer and head, with the level expected by chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

from attngeo.io.names import short_name
from attngeo.show.canvas import (
    COLOURS,
    DASHED,
    GREY,
    PAGE,
    for_print,
    new_figure,
    panel_title,
    stack_colour,
    style_axes,
)

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attngeo.weights.scoring.score_table import LayerNulls, NullLevel

_LINE_STYLES = ("-", "--", ":")  # the next one when all colours are used

_PANELS = {
    "symmetry": "1 symmetric, −1 skew",
    "directionality": "below 0 columns dominate, above 0 rows",
}


@dataclass(frozen=True)
class _Series:
    """One stack of one model, and how it is drawn."""

    model: str
    stack: str
    layers: pl.DataFrame  # rows of whole layers
    heads: pl.DataFrame  # rows of single heads
    colour: str
    line_style: str
    step: float  # distance on the x axis from one layer to the next; layer 0 is at 0

    @property
    def label(self) -> str:
        """The end of the model's path, and the stack."""
        return "  ".join(dict.fromkeys([short_name(self.model), self.stack]))

    def x(self, rows: pl.DataFrame) -> pl.Series:
        """Return the x coordinate of each row; the heads of a layer lie side by side."""
        x = rows["layer"] * self.step
        if rows["head"].null_count() == rows.height or rows.height == 0:
            return x
        count = int(rows["head"].max()) + 1  # type: ignore[arg-type]
        return x + ((rows["head"] + 0.5) / count - 0.5) * 0.7 * self.step


@for_print
def score_figure(frame: pl.DataFrame, nulls: LayerNulls, head_nulls: LayerNulls | None = None) -> Figure:
    """Draw the symmetry and the directionality of each layer (lines) and head (dots), one colour per model and stack.

    frame:      columns as in `ScoreTable.frame`, of one or several models
    nulls:      the null of the layers of each stack; its mean is a grey line, its central 95% a grey band
    head_nulls: the null of the heads; its central 95% lies between dotted lines
    """
    figure = new_figure(PAGE, 3.3)
    draw_scores(figure, figure.subplots(1, 2), frame, nulls, head_nulls or {})
    return figure


def draw_scores(
    figure: Figure, axes: Sequence[Axes], frame: pl.DataFrame, nulls: LayerNulls, head_nulls: LayerNulls
) -> None:
    """Draw the content of `score_figure` into two panels, with the legend below the whole figure."""
    from matplotlib.ticker import MaxNLocator

    series = _series(frame)
    relative_depth = len({part.step for part in series}) > 1
    for ax, (score, meaning) in zip(axes, _PANELS.items(), strict=True):
        for part in series:
            _draw_series(ax, score, part)
        _draw_nulls(ax, score, series, nulls)
        _draw_head_nulls(ax, score, [part for part in series if part.heads.height], head_nulls)
        panel_title(ax, score, meaning)
        ax.set_xlabel("depth: first layer 0, last layer 1" if relative_depth else "layer")
        style_axes(ax, grid="y")
        if not relative_depth:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = axes[0].get_legend_handles_labels()
    columns = 1 if max(map(len, labels)) > 60 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def _series(frame: pl.DataFrame) -> list[_Series]:
    """Split a frame by model and stack."""
    import polars as pl

    parts = frame.partition_by("model", "stack", maintain_order=True)
    last_layers = [int(part["layer"].max()) for part in parts]  # type: ignore[arg-type]
    # Models of different depth are drawn over each other, from first layer to last.
    relative_depth = len(set(last_layers)) > 1
    colours = _colours([part["stack"][0] for part in parts])
    return [
        _Series(
            model=part["model"][0],
            stack=part["stack"][0],
            layers=part.filter(pl.col("head").is_null()).sort("layer"),
            heads=part.filter(pl.col("head").is_not_null()),
            colour=colours[i],
            line_style=_LINE_STYLES[i // len(COLOURS) % len(_LINE_STYLES)],
            step=1 / max(last, 1) if relative_depth else 1.0,
        )
        for i, (part, last) in enumerate(zip(parts, last_layers, strict=True))
    ]


def _colours(stacks: Sequence[str]) -> list[str]:
    """Return a colour per series: the first of each stack has that of its stack, the others those that are left."""
    own = [stack_colour(stack) if stack not in stacks[:at] else None for at, stack in enumerate(stacks)]
    own = [colour if colour != GREY else None for colour in own]
    free = [colour for colour in COLOURS if colour not in own] or list(COLOURS)
    left = cycle(free)
    return [colour or next(left) for colour in own]


def _levels(score: str, series: list[_Series], nulls: LayerNulls) -> list[NullLevel]:
    """Return the nulls of these series, each once."""
    levels = {nulls[key][score] for key in ((part.model, part.stack) for part in series) if key in nulls}
    return sorted(levels, key=lambda level: (level.mean, level.std or 0.0))


def _draw_nulls(ax: Axes, score: str, series: list[_Series], nulls: LayerNulls) -> None:
    """Draw the mean of each null as a line and ±1.96 standard deviations, where known, as a band."""
    for level in _levels(score, series, nulls):
        margin = 1.96 * (level.std or 0.0)
        ax.axhline(level.mean, color=GREY, linewidth=1, linestyle=DASHED, zorder=1)
        ax.axhspan(level.mean - margin, level.mean + margin, color=GREY, alpha=0.12, linewidth=0, zorder=0)
    ax.plot([], [], color=GREY, linewidth=1, linestyle=DASHED, label="layers of random factors: mean, 95%")


def _draw_head_nulls(ax: Axes, score: str, series: list[_Series], nulls: LayerNulls) -> None:
    """Draw ±1.96 standard deviations of each null of heads, where known, as dotted lines."""
    levels = _levels(score, series, nulls)
    for level in levels:
        for sign in (-1, 1) if level.std else ():
            ax.axhline(level.mean + sign * 1.96 * (level.std or 0.0), color=GREY, linewidth=1, linestyle=":", zorder=1)
    ax.scatter([], [], s=7, color=GREY, label="single heads")
    if any(level.std for level in levels):
        ax.plot([], [], color=GREY, linewidth=1, linestyle=":", label="heads of random factors: 95%")


def _draw_series(ax: Axes, score: str, part: _Series) -> None:
    ax.scatter(
        part.x(part.heads).to_numpy(),
        part.heads[score].to_numpy(),
        s=6,
        color=part.colour,
        alpha=0.5,
        linewidths=0,
        zorder=2,
    )
    ax.plot(
        part.x(part.layers).to_numpy(),
        part.layers[score].to_numpy(),
        part.line_style,
        color=part.colour,
        marker="o",
        markersize=3.5,
        markeredgecolor="white",
        markeredgewidth=0.5,
        linewidth=1.4,
        zorder=3,
        label=part.label,
    )
