"""`drawn`: a figure on paper, drawn by matplotlib, and `save_figure`.

Figures are made for a paper: one column or the whole page wide, with letters of 7 to 9 points (6 for tokens and the
numbers beside a colour bar). No function uses matplotlib's `pyplot`, so figures need no display and nothing stays open.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping
from functools import partial, singledispatch
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from attngeo.charts import (
    GREY,
    SEQUENTIAL,
    Axis,
    Band,
    Bar,
    Heatmap,
    Level,
    Line,
    Panel,
    Points,
    Text,
)
from attngeo.charts import Figure as Chart
from attngeo.io.files import atomic_file, write_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as Side
    from matplotlib.figure import Figure

GRID_GREY = "#e6e6e6"
DASHED = (0, (4, 3))  # the line style of reference lines
TITLE, TEXT, SMALL, TINY = 9, 8, 7, 6  # points: panel titles, axis labels, ticks and legends, tokens

_WIDTH, _SIZE = 0.67, 0.45  # points for a pixel of a page: of a line's width, of a symbol's diameter
_MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "pentagon": "p",
    "hexagon": "h",
    "star": "*",
    "cross": "P",
    "x": "x",
}
_PRINT = {
    "font.size": TEXT,
    "axes.labelsize": TEXT,
    "axes.titlesize": TITLE,
    "figure.titlesize": TITLE,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.linewidth": 0.7,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
}
_VECTOR = {"pdf.fonttype": 42, "svg.hashsalt": "attngeo"}  # fonts that publishers accept; the same file each time


def drawn(chart: Chart) -> Figure:
    """Return a chart as a figure of matplotlib."""
    from matplotlib import rc_context

    with rc_context(_PRINT):
        rows = -(-len(chart.panels) // chart.columns)
        figure = new_figure(*chart.size)
        grid = figure.subplots(
            rows,
            chart.columns,
            squeeze=False,
            sharex="x" in chart.same,
            sharey="y" in chart.same,
            width_ratios=chart.widths or None,
        )
        for ax in grid.flat[len(chart.panels) :]:
            ax.set_axis_off()
        for at, panel in enumerate(chart.panels):
            row, column = divmod(at, chart.columns)
            ax = grid[row, column]
            for number, series in enumerate(panel.series):
                picture = _draw(series, ax, number)
                if (bar := getattr(series, "bar", None)) is not None:
                    _draw_bar(figure, picture, bar, {"panel": ax, "row": grid[row], "column": grid[:, column]}[bar.of])
            _finish(ax, panel)
            if chart.same and column and not ax.get_ylabel():
                ax.tick_params(labelleft=False)
        _draw_legends(figure, grid.flat, chart)
        if chart.title:
            figure.suptitle(_plain(chart.title))
        for ax in figure.axes:  # a tick takes its letters when it is made: by default, when it is first drawn
            ax.xaxis.get_major_ticks(1)
            ax.yaxis.get_major_ticks(1)
    return figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, which a notebook shows; `width` and `height` are in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=200)
    # IPython shows figures only after `%matplotlib inline` or an import of pyplot, which nothing here needs.
    figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]
    return figure


def _png(figure: Figure) -> bytes:
    """Return the picture that a notebook shows."""
    picture = io.BytesIO()
    save_figure(figure, picture)
    return picture.getvalue()


def save_figure(figure: Figure, target: Path | IO[bytes], format: str = "png") -> None:
    """Write a figure to a file, atomically and in the format of its suffix, or to an open file in `format`.

    .pdf and .svg are vector formats. A character that the font lacks is drawn as a box, without matplotlib's warning.
    """
    from matplotlib import rc_context

    with warnings.catch_warnings(), rc_context(_VECTOR):
        warnings.filterwarnings("ignore", "Glyph")
        if isinstance(target, Path):
            with write_errors(target), atomic_file(target) as file:
                figure.savefig(file, format=target.suffix[1:].lower() or "png")
        else:
            figure.savefig(target, format=format)


def style_axes(ax: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Remove the frame above and to the right of a panel and draw a light grid behind its data."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis=grid, color=GRID_GREY, linewidth=0.8)
    ax.set_axisbelow(True)


def panel_title(ax: Axes, title: str, note: str = "") -> None:
    """Set the title of a panel (bold) and, below it, a note on how to read it (small)."""
    ax.set_title(title, loc="left", fontweight="bold", fontsize=TITLE, pad=15 if note and title else 5)
    if note:
        ax.annotate(
            note, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points", fontsize=SMALL, color=GREY
        )


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # matplotlib would read $…$ as a formula


def _dash(dash: str) -> Any:
    return DASHED if dash == "--" else dash


@singledispatch
def _draw(series: Any, ax: Axes, order: int) -> Any:
    """Draw a series over those of lower order; return what a bar of colours may stand for."""
    raise NotImplementedError


@_draw.register(Line)
def _(line: Line, ax: Axes, order: int) -> None:
    style: dict[str, Any] = {"color": line.colour, "linewidth": _WIDTH * line.width, "zorder": 2 + 0.01 * order}
    style |= {"linestyle": _dash(line.dash), "marker": _MARKERS.get(line.symbol, ""), "markersize": _SIZE * line.size}
    x, y = (np.asarray(values, float) for values in (line.x, line.y))
    ax.plot(x, y, alpha=line.opacity, label=_plain(line.label), **style)


@_draw.register(Points)
def _(points: Points, ax: Axes, order: int) -> Any:
    style: dict[str, Any] = {"s": (_SIZE * points.size) ** 2, "alpha": points.opacity, "zorder": 2 + 0.01 * order}
    style |= {"marker": _MARKERS[points.symbol.removesuffix("-open")], "label": _plain(points.label)}
    if points.edge:
        style |= {"edgecolors": "white", "linewidths": 0.4}
    elif points.symbol != "x":  # which consists of lines
        style["linewidths"] = 0.0
    if points.shade is not None:
        low, high = points.limits
        style |= {"c": np.asarray(points.shade), "cmap": SEQUENTIAL, "vmin": low, "vmax": high}
    elif points.symbol.endswith("-open"):
        style |= {"facecolors": "white", "edgecolors": points.colour, "linewidths": 0.9}
    else:
        style["color"] = points.colour
    return ax.scatter(np.asarray(points.x, float), np.asarray(points.y, float), **style)


@_draw.register(Band)
def _(band: Band, ax: Axes, order: int) -> None:
    low, high = (np.asarray(end, float) for end in (band.low, band.high))
    style: dict[str, Any] = {"color": band.colour, "alpha": band.opacity, "linewidth": 0, "label": _plain(band.label)}
    ax.fill_between(np.asarray(band.x, float), low, high, zorder=1 + 0.01 * order, **style)


@_draw.register(Level)
def _(level: Level, ax: Axes, order: int) -> None:
    line, span = (ax.axvline, ax.axvspan) if level.upright else (ax.axhline, ax.axhspan)
    if level.margin:
        ends = level.at - level.margin, level.at + level.margin
        span(*ends, color=level.colour, alpha=0.15, linewidth=0, zorder=0)
    style: dict[str, Any] = {"color": level.colour, "linewidth": _WIDTH * level.width, "linestyle": _dash(level.dash)}
    line(level.at, zorder=1 + 0.01 * order, label=_plain(level.label), **style)


@_draw.register(Heatmap)
def _(heatmap: Heatmap, ax: Axes, order: int) -> Any:
    from matplotlib.colors import ListedColormap

    low, high = heatmap.limits
    colours = ListedColormap([heatmap.colours]) if heatmap.colours.startswith("#") else heatmap.colours
    style: dict[str, Any] = {"interpolation": "nearest", "aspect": "auto", "origin": "lower", "zorder": 0.01 * order}
    return ax.imshow(np.asarray(heatmap.values, float), cmap=colours, vmin=low, vmax=high, **style)


@_draw.register(Text)
def _(text: Text, ax: Axes, order: int) -> None:
    style: dict[str, Any] = {"fontsize": TINY if text.small else SMALL, "color": text.colour or "black"}
    for x, y, words in zip(text.x, text.y, text.words, strict=True):
        ax.annotate(_plain(words), (x, y), (3, 3), textcoords="offset points", zorder=4, **style)


def _draw_bar(figure: Figure, picture: Any, bar: Bar, beside: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    place = {"location": "bottom", "aspect": 25} if bar.below else {"shrink": 0.85, "pad": 0.02}
    drawn_bar = figure.colorbar(picture, ax=beside, extend="max" if bar.open else "neither", **place)
    if bar.title:
        drawn_bar.set_label(bar.title)
    if bar.ticks is not None:
        drawn_bar.set_ticks(list(bar.ticks), labels=list(bar.ticks.values()))
    else:
        drawn_bar.locator = MaxNLocator(4 if bar.below else 6, integer=bar.whole)
        drawn_bar.update_ticks()
    if bar.below or bar.ticks is not None:  # long numbers
        drawn_bar.ax.tick_params(labelsize=TINY)


def _finish(ax: Axes, panel: Panel) -> None:
    """Set titles, limits, ticks and grid of a panel whose series are drawn."""
    if panel.empty:
        ax.set_axis_off()
        for text in ax.texts:
            text.set(position=(0, 1), anncoords="axes fraction", verticalalignment="top")
        return
    panel_title(ax, _plain(panel.title), _plain(panel.note))
    _finish_side(ax, panel.x, ax.xaxis, "x")
    _finish_side(ax, panel.y, ax.yaxis, "y")
    if not any(isinstance(series, Heatmap) for series in panel.series):
        style_axes(ax, "both" if panel.x.grid and panel.y.grid else "y" if panel.y.grid else "x")
    if panel.equal:
        ax.margins(0.2)
        ax.set_aspect("equal", adjustable="datalim")  # lengths on the panel are distances


def _finish_side(ax: Axes, axis: Axis, side: Side, name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    side.set_label_text(_plain(axis.title))
    if axis.log:
        ax.set(**{f"{name}scale": "log"})
    if axis.range is not None:
        ax.set(**{f"{name}lim": axis.range})
    elif axis.zero:
        ax.set(**{f"{name}lim": (0, None)})
    if axis.reverse:
        side.set_inverted(True)
    if axis.flat:
        side.set_ticks([])
    elif axis.categories or axis.ticks is not None:
        labels: Mapping[float, str] = dict(enumerate(axis.categories)) or axis.ticks or {}
        # Many categories are tokens: small, and turned on the horizontal axis, so that they do not overlap.
        style: dict[str, Any] = {"fontsize": TINY} if axis.categories else {}
        style |= {"rotation": 90} if axis.categories and name == "x" else {}
        side.set_ticks([], minor=True)
        side.set_ticks(list(labels), [*map(_plain, labels.values())], **style)
    elif axis.whole:
        side.set_major_locator(MaxNLocator("auto", integer=True))


def _draw_legends(figure: Figure, axes: Iterable[Axes], chart: Chart) -> None:
    """Draw a legend inside each panel, or one of all panels with each label once."""
    places = {"inside": {}, "under": {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}}
    entries: dict[str, Any] = {}
    legends = []
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        own = dict(zip(labels, handles, strict=True))
        entries |= {label: handle for label, handle in own.items() if label not in entries}
        if own and chart.legend in places:
            legends.append(ax.legend(list(own.values()), list(own), **places[chart.legend]))
    if entries and chart.legend not in places:
        longest = max(map(len, entries))
        columns = 1 if longest > 60 else 3 if len(entries) > 4 and longest < 30 else 2
        place = {"loc": "outside lower center", "ncols": columns}
        place = {"loc": "outside right center"} if chart.legend == "beside" else place
        legends.append(figure.legend(list(entries.values()), list(entries), **place))
    for handle in (handle for legend in legends for handle in legend.legend_handles if handle is not None):
        handle.set_alpha(1)  # what is faint because there are many of it is not faint here
