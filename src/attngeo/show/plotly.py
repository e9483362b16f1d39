"""`described`: a figure on a page, as the JSON from which plotly draws it in a browser.

The description consists of dicts, lists, strings and numbers of five significant digits. Backgrounds are transparent,
and text and grid lines have no colour, so that the page sets both for light and dark themes. All text is escaped, since
plotly would read it as markup. A trace whose points are heads has their labels ("L3H7") as `customdata`. A figure with
a choice has one entry in `layout.updatemenus`, which the page shows as a select element.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any

import numpy as np

from attngeo.charts import (
    DIVERGING,
    GREY,
    LIGHT_GREY,
    SEQUENTIAL,
    Axis,
    Band,
    Bar,
    Figure,
    Heatmap,
    Level,
    Line,
    Panel,
    Points,
    Text,
)

DIGITS = 5  # significant digits of the numbers in a page
TITLE_LINE, LABEL_LINE = 38, 44  # characters of a line of a title, and of the legend, that fit a phone's width

_GREYS = dict.fromkeys((GREY, LIGHT_GREY), "#808080")  # visible on a light and on a dark page
_SCALES = {
    SEQUENTIAL: "Viridis",
    DIVERGING: [[0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#f4a582"], [1, "#b2182b"]],
}
_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
_TRANSPARENT = "rgba(0,0,0,0)"
_GAP, _BOTTOM, _TOP = 86, 52, 30  # pixels: between panels, below the last one, above the first
_LINE_HEIGHT = 17  # pixels: of each further line of a title
_BETWEEN = 0.04  # of the width: between panels that stay side by side

Trace = dict[str, Any]  # one plotly trace


def described(figure: Figure) -> dict[str, Any]:
    """Return the description of a figure: `data`, `layout` and, where panels may stand side by side, their `grid`."""
    panels, height = figure.panels, figure.height
    titles = [in_lines(panel.title, TITLE_LINE) for panel in panels]
    further = _LINE_HEIGHT * max((title.count("<br>") for title in titles), default=0)
    fixed = bool(figure.widths)  # all panels in one row
    rows, gap = 1 if fixed else len(panels), _GAP + further
    inner = rows * height + (rows - 1) * gap
    data = [trace for at, panel in enumerate(panels) for trace in _traces(panel, at)]
    legend = _sort_legend(data)
    layout: dict[str, Any] = {
        "height": inner + _TOP + further + _BOTTOM + (30 if legend else 0),
        "margin": {"l": 58, "r": 14, "t": _TOP + further, "b": _BOTTOM},
        "paper_bgcolor": _TRANSPARENT,
        "plot_bgcolor": _TRANSPARENT,
        "font": {"size": 12},
        "hovermode": "closest",
        "showlegend": legend,
        "annotations": [],
    }
    if legend:
        layout["legend"] = {
            "orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom"
        }  # fmt: skip
    across = _domains(figure.widths or (1.0,))
    for at, (panel, title) in enumerate(zip(panels, titles, strict=True)):
        number = str(at + 1) if at else ""
        top = 1.0 if fixed else 1 - at * (height + gap) / inner
        sides = {"x": across[at if fixed else 0], "y": [max(0.0, top - height / inner), top]}
        for side, other, axis in (("x", "y", panel.x), ("y", "x", panel.y)):
            settings = {"anchor": f"{other}{number}", "automargin": True, "zeroline": False, **_axis(axis, panel, side)}
            settings["domain"] = rounded(sides[side])
            if side in figure.same and at:
                settings |= {"matches": side} | ({"showticklabels": False} if fixed and side == "y" else {})
            layout[f"{side}axis{number}"] = settings
        if panel.equal:
            layout[f"yaxis{number}"]["scaleanchor"] = f"x{number}"
        layout["annotations"].append(_title(title, sides["x"][0], top))
    if figure.choice:
        layout["updatemenus"] = [_choice(data)]
    made: dict[str, Any] = {"data": data, "layout": layout}
    if not fixed and min(figure.columns, len(panels)) > 1:
        made["grid"] = {"panels": len(panels), "beside": figure.columns, "height": height, "gap": gap}
    return made


def rounded(values: Any, digits: int = DIGITS) -> Any:
    """Return numbers of any shape as nested lists with few significant digits; NaN and infinity become None.

    >>> rounded([[1 / 3, float("nan")], [2, 1e-9 / 7]])
    [[0.33333, None], [2, 1.4286e-10]]
    """
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, Sequence) and not isinstance(values, str):
        return [rounded(value, digits) for value in values]
    if isinstance(values, float | np.floating):
        return float(f"{values:.{digits}g}") if math.isfinite(values) else None
    return values


def escaped(text: str) -> str:
    """Return text that plotly shows as it is: plotly reads some HTML, and %{…} in templates.

    >>> escaped("<b>a & %{x}")
    '&lt;b&gt;a &amp; %\\u200b{x}'
    """
    return html.escape(text, quote=False).replace("%{", "%\u200b{")


def in_lines(text: str, width: int) -> str:
    """Return text escaped and in lines of at most `width` characters, broken after / - _ . or a space.

    >>> in_lines("sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2", 34)
    'sentence-transformers/paraphrase-<br>multilingual-MiniLM-L12-v2'
    """
    lines = []
    for given in text.split("\n"):
        lines.append("")
        for word in re.findall(rf"[^/\-_. ]{{0,{width - 1}}}[/\-_. ]|[^/\-_. ]{{1,{width}}}", given):
            if len(lines[-1]) + len(word.rstrip()) > width:
                lines.append("")
            lines[-1] += word
    return "<br>".join(escaped(line.strip()) for line in lines)


def _colour(colour: str, opacity: float = 1.0) -> str:
    """Return a colour #rrggbb for plotly, with its opacity."""
    colour = _GREYS.get(colour, colour)
    if opacity == 1:
        return colour
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _domains(widths: Sequence[float]) -> list[list[float]]:
    """Return where each of several panels side by side begins and ends, as shares of the width."""
    room = 1 - _BETWEEN * (len(widths) - 1)
    ends = np.cumsum(widths) / np.sum(widths) * room
    return [[end - width / sum(widths) * room + at * _BETWEEN, end + at * _BETWEEN]
            for at, (end, width) in enumerate(zip(ends.tolist(), widths, strict=True))]  # fmt: skip


def _axis(axis: Axis, panel: Panel, side: str) -> dict[str, Any]:
    """Return the settings of an axis, its title and those that differ from what plotly chooses."""
    settings: dict[str, Any] = {"title": {"text": escaped(axis.title), "standoff": 8}}
    if axis.log:
        settings |= {"type": "log", "dtick": 1, "exponentformat": "power"}
    if axis.range is not None:
        low, high = np.log10(axis.range).tolist() if axis.log else axis.range
        settings["range"] = rounded([high, low] if axis.reverse else [low, high])
    else:
        settings |= ({"autorange": "reversed"} if axis.reverse else {}) | ({"rangemode": "tozero"} if axis.zero else {})
    if axis.categories:
        names = [escaped(name) for name in axis.categories]
        settings |= {"type": "category", "categoryorder": "array", "categoryarray": names, "tickfont": {"size": 9}}
    elif axis.ticks is not None:
        labels = [in_lines(label, TITLE_LINE) for label in axis.ticks.values()]
        settings |= {"tickvals": rounded(list(axis.ticks)), "ticktext": labels}
        settings.pop("dtick", None)
    elif axis.whole:
        settings |= {"dtick": _whole_step(_extent(panel, side)), "tick0": 0}
    if axis.flat:
        settings |= {"showticklabels": False, "fixedrange": True}
    return settings if axis.grid else settings | {"showgrid": False}


def _whole_step(extent: tuple[float, float]) -> int:
    """Return the distance of at most about ten ticks at whole numbers."""
    span = extent[1] - extent[0] + 1
    return next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if span / step <= 10.5)


def _extent(panel: Panel, side: str) -> tuple[float, float]:
    """Return the smallest and the largest coordinate of a panel: those of its axis, or else those of its series."""
    axis = panel.x if side == "x" else panel.y
    if axis.range is not None:
        return axis.range
    values: list[float] = []
    for series in panel.series:
        if isinstance(series, Heatmap):
            values += [-0.5, np.shape(series.values)[side == "x"] - 0.5]
        elif isinstance(series, Line | Points):
            values += [float(value) for value in getattr(series, side) if value is not None and math.isfinite(value)]
    return min(values, default=0.0), max(values, default=1.0)


def _title(text: str, left: float, top: float) -> dict[str, Any]:
    """Return the title of a panel as an annotation at its upper left corner."""
    place = {"x": rounded(left), "y": rounded(top), "xanchor": "left", "yanchor": "bottom", "yshift": 4}
    style = {"showarrow": False, "font": {"size": 13}, "align": "left"}
    return {"text": f"<b>{text}</b>" if text else "", "xref": "paper", "yref": "paper", **place, **style}


def _choice(data: list[Trace]) -> dict[str, Any]:
    """Return a menu that shows one of several heat maps, and all other traces with each; hide all but the first."""
    maps = [at for at, trace in enumerate(data) if trace["type"] == "heatmap"]
    buttons = [
        {
            "label": data[shown]["name"],
            "method": "restyle",
            "args": [{"visible": [at == shown or at not in maps for at in range(len(data))]}],
        }
        for shown in maps
    ]
    for at in maps:
        data[at]["visible"] = at == maps[0]
    return {"type": "dropdown", "buttons": buttons, "showactive": True, "active": 0}


def _sort_legend(data: list[Trace]) -> bool:
    """Give each label one entry in the legend, which hides and shows its group; return if there is one."""
    seen = {""}
    for trace in data:
        if trace["type"] != "heatmap":
            name = trace.get("name", "")
            trace["showlegend"] = name not in seen
            seen.add(name)
    return len(seen) > 1


def _traces(panel: Panel, at: int) -> Iterator[Trace]:
    number = str(at + 1) if at else ""
    for series in panel.series:
        for trace in _trace(series, panel):
            yield {**trace, "xaxis": f"x{number}", "yaxis": f"y{number}"}


@singledispatch
def _trace(series: Any, panel: Panel) -> list[Trace]:
    """Return the traces of a series."""
    raise NotImplementedError


def _scatter(series: Line | Points | Band | Level, x: Any, y: Any, mode: str) -> Trace:
    """Return what traces of points and lines have in common; an entry of the legend needs a point, of no place."""
    trace: Trace = {"type": "scatter", "mode": mode}
    trace |= {"x": rounded(x if len(x) else [None]), "y": rounded(y if len(y) else [None])}
    if series.label:
        trace["name"] = in_lines(series.label, LABEL_LINE)
    if series.group or series.label:
        trace["legendgroup"] = escaped(series.group or series.label)
    for name, key in (("names", "customdata"), ("details", "text")):
        if len(words := getattr(series, name, ())):
            trace[key] = [escaped(word) for word in words]
    return trace | _hover(getattr(series, "hover", ""), bool(series.label))


def _named(trace: Trace, panel: Panel) -> Trace:
    """Return a trace with the categories of the axes in place of its coordinates."""
    for name, axis in (("x", panel.x), ("y", panel.y)):
        if axis.categories:
            trace[name] = [None if at is None else escaped(axis.categories[at]) for at in trace[name]]
    return trace


def _hover(hover: str, named: bool) -> Trace:
    """Return the template of what is said of a point; a series with a label adds it."""
    if not hover:
        return {"hoverinfo": "skip"}
    template = hover.replace("{name}", "{customdata}").replace("{detail}", "{text}")
    template = template.replace("{", "%{").replace("\n", "<br>")
    return {"hovertemplate": template + ("" if named else "<extra></extra>")}


def _line_style(series: Line | Level) -> Trace:
    return {"color": _colour(series.colour), "width": series.width, "dash": _DASHES[series.dash]}


@_trace.register(Line)
def _(line: Line, panel: Panel) -> list[Trace]:
    trace = _named(_scatter(line, line.x, line.y, "lines+markers" if line.symbol else "lines"), panel)
    trace["line"] = _line_style(line)
    if line.opacity != 1:
        trace["opacity"] = line.opacity
    if line.symbol:
        trace["marker"] = {"color": _colour(line.colour), "size": line.size, "symbol": line.symbol}
    return [trace]


@_trace.register(Points)
def _(points: Points, panel: Panel) -> list[Trace]:
    marker: Trace = {"color": _colour(points.colour), "size": points.size, "symbol": points.symbol}
    if points.opacity != 1:
        marker["opacity"] = points.opacity
    if points.edge:
        marker["line"] = {"width": 0.5, "color": "#ffffff"}
    if points.symbol.endswith("-open"):
        marker["line"] = {"width": 1.5}
    if points.shade is not None:
        low, high = points.limits
        marker |= {"color": rounded(points.shade), "colorscale": _SCALES[SEQUENTIAL], "cmin": low, "cmax": high}
        if points.bar is not None:
            marker["colorbar"] = _colour_bar(points.bar, points.limits)
    return [_named(_scatter(points, points.x, points.y, "markers"), panel) | {"marker": marker}]


@_trace.register(Band)
def _(band: Band, panel: Panel) -> list[Trace]:
    x, low, high = (list(values) for values in (band.x, band.low, band.high))
    trace = _scatter(band, x + x[::-1], low + high[::-1], "lines")
    return [trace | {"fill": "toself", "fillcolor": _colour(band.colour, band.opacity), "line": {"width": 0}}]


@_trace.register(Level)
def _(level: Level, panel: Panel) -> list[Trace]:
    ends = list(_extent(panel, "y" if level.upright else "x"))
    traces = []
    for band in (True,) * bool(level.margin) + (False,):
        margins = (-level.margin, level.margin) if band else (0.0,)
        values = [level.at + margin for margin in margins for _ in ends]
        along = [*ends, *ends[::-1]] if band else ends
        x, y = (values, along) if level.upright else (along, values)
        style = {"fill": "toself", "fillcolor": _colour(level.colour, 0.25), "line": {"width": 0}}
        traces.append(_scatter(level, x, y, "lines") | (style if band else {"line": _line_style(level)}))
    return traces


@_trace.register(Text)
def _(text: Text, panel: Panel) -> list[Trace]:
    words = {"text": [escaped(word) for word in text.words], "textposition": "top right", "hoverinfo": "skip"}
    return [{"type": "scatter", "mode": "text", "x": rounded(text.x), "y": rounded(text.y), **words}]


@_trace.register(Heatmap)
def _(heatmap: Heatmap, panel: Panel) -> list[Trace]:
    low, high = heatmap.limits
    colours = heatmap.colours.removesuffix("_r") if heatmap.colours not in _SCALES else heatmap.colours
    trace: Trace = {"type": "heatmap", "z": rounded(heatmap.values), "colorscale": _SCALES[colours]}
    trace |= {"reversescale": colours != heatmap.colours, "hoverongaps": False}
    trace |= {"zmin": rounded(float(low)), "zmax": rounded(float(high)), "showscale": heatmap.bar is not None}
    for name, axis in (("x", panel.x), ("y", panel.y)):
        if axis.categories:
            trace[name] = [escaped(category) for category in axis.categories]
    if heatmap.label:
        trace["name"] = escaped(heatmap.label)
    if heatmap.bar is not None:
        trace["colorbar"] = _colour_bar(heatmap.bar, heatmap.limits)
    if heatmap.gap:
        trace |= {"xgap": 1, "ygap": 1}
    if len(heatmap.names):
        trace["customdata"] = [[name and escaped(name).replace("\n", "<br>") for name in row] for row in heatmap.names]
    return [trace | _hover(heatmap.hover, False)]


def _colour_bar(bar: Bar, limits: tuple[float, float]) -> Trace:
    """Return a narrow colour bar without a frame."""
    ticks = {"dtick": _whole_step(limits), "tick0": 0} if bar.whole else {}
    return {"title": {"text": escaped(bar.title), "side": "right"}, "thickness": 12, "outlinewidth": 0, **ticks}
