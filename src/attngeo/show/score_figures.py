"""Pictures of scores, made without matplotlib's global state: nothing here needs a display or leaves a figure open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attngeo.show.canvas import GREY, new_figure, style_axes, panel_title

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STROKES = ("-", "--", ":")
_DASHES = (0, (4, 3))

_PANELS = {
    "symmetry": "1 symmetric, −1 skew",
    "directionality": "below 0 columns dominate, above 0 rows",
}


@dataclass(frozen=True)
class _Series:
    """One model's stack: where its layers stand on the x axis and how it is drawn."""

    label: str
    layers: pl.DataFrame
    heads: pl.DataFrame
    colour: str
    stroke: str
    first: float  # x of layer 0
    step: float  # x from one layer to the next

    def at(self, rows: pl.DataFrame) -> pl.Series:
        """x of each row; the heads of a layer side by side, so that none hides another."""
        x = self.first + rows["layer"] * self.step
        if rows["head"].null_count() == rows.height or rows.height == 0:
            return x
        count = int(rows["head"].max()) + 1  # type: ignore[arg-type]
        return x + ((rows["head"] + 0.5) / count - 0.5) * 0.7 * self.step


def score_figure(frame: pl.DataFrame) -> Figure:
    """Symmetry and directionality of every layer (line) and head (dots), each model and stack in its colour.

    `frame` has the columns of `ScoreTable.frame`, of one model or of several one after the other. The grey line is
    what layers of independent random factors give on average; the band, where z was computed, holds 95% of them.
    """
    figure = new_figure(10, 4.6)
    draw_scores(figure, figure.subplots(1, 2), frame)
    return figure


def draw_scores(figure: Figure, axes: Sequence[Axes], frame: pl.DataFrame) -> None:
    """What `score_figure` shows, into two axes; the legend goes below the whole figure."""
    from matplotlib.ticker import MaxNLocator

    series = _series(frame)
    depth = len({part.step for part in series}) > 1
    for ax, (score, meaning) in zip(axes, _PANELS.items(), strict=True):
        for part in series:
            _draw(ax, score, part)
        _chance(ax, score, series)
        panel_title(ax, score, meaning)
        ax.set_xlabel("depth: first layer 0, last layer 1" if depth else "layer")
        style_axes(ax, grid="y")
        if not depth:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = axes[0].get_legend_handles_labels()
    columns = 1 if max(map(len, labels)) > 60 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def _series(frame: pl.DataFrame) -> list[_Series]:
    import polars as pl

    parts = frame.partition_by("model", "stack", maintain_order=True)
    last = [int(part["layer"].max()) for part in parts]  # type: ignore[arg-type]
    # Models of different length are laid over each other from first layer to last.
    depth = len(set(last)) > 1
    return [
        _Series(
            label="  ".join(dict.fromkeys([_short(part["model"][0]), part["stack"][0]])),
            layers=part.filter(pl.col("head").is_null()).sort("layer"),
            heads=part.filter(pl.col("head").is_not_null()),
            colour=COLOURS[i % len(COLOURS)],
            stroke=_STROKES[i // len(COLOURS) % len(_STROKES)],
            first=0.0,
            step=1 / max(end, 1) if depth else 1.0,
        )
        for i, (part, end) in enumerate(zip(parts, last, strict=True))
    ]


def _short(model: str) -> str:
    """Enough of a path to know the model by."""
    return "/".join(model.rstrip("/").split("/")[-2:])


def _chance(ax: Axes, score: str, series: list[_Series]) -> None:
    """What random factors give: the mean as a line, ±1.96 standard deviations as a band, where z is known."""
    for mean, std in sorted({_null(part.layers, score) for part in series}):
        ax.axhline(mean, color=GREY, linewidth=1, linestyle=_DASHES, zorder=1)
        ax.axhspan(mean - 1.96 * std, mean + 1.96 * std, color=GREY, alpha=0.12, linewidth=0, zorder=0)
    ax.plot([], [], color=GREY, linewidth=1, linestyle=_DASHES, label="layers of random factors: mean, 95%")
    ax.scatter([], [], s=7, color=GREY, label="single heads")


def _null(layers: pl.DataFrame, score: str) -> tuple[float, float]:
    """Mean and standard deviation of chance, read back from a score and its z; 0 where no z was computed."""
    import polars as pl

    mean = 1 / layers["query_width"][0] if score == "symmetry" else 0.0
    rows = layers.filter(pl.col(f"{score}_z").is_not_null(), pl.col(f"{score}_z") != 0, ~pl.col("cross"))
    if rows.height == 0:
        return mean, 0.0
    far = rows.sort(pl.col(f"{score}_z").abs())[-1]  # where the division is most exact
    return mean, (far[score][0] - mean) / far[f"{score}_z"][0]


def _draw(ax: Axes, score: str, part: _Series) -> None:
    ax.scatter(
        part.at(part.heads).to_numpy(),
        part.heads[score].to_numpy(),
        s=7,
        color=part.colour,
        alpha=0.3,
        linewidths=0,
        zorder=2,
    )
    ax.plot(
        part.at(part.layers).to_numpy(),
        part.layers[score].to_numpy(),
        part.stroke,
        color=part.colour,
        marker="o",
        markersize=4,
        markeredgecolor="white",
        markeredgewidth=0.6,
        linewidth=1.8,
        zorder=3,
        label=part.label,
    )
