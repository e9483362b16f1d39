"""Parts that all plotly descriptions share: rounded numbers, escaped text, and panels below one another."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attngeo.io.names import short_name

DIGITS = 5  # significant digits of the numbers in a page
LINE = 34  # characters of a line of a title that fit a phone's width

NULL_GREY = "#808080"  # of nulls and controls: visible on a light and on a dark page
BAND = "rgba(128,128,128,0.25)"  # the fill of a null

# From negative (blue) over 0 to positive (red); both are distinguishable with every kind of colour vision.
DIVERGING = [[0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#f7f7f7"], [0.75, "#f4a582"], [1, "#b2182b"]]
SEQUENTIAL = "Viridis"

Trace = dict[str, Any]  # one plotly trace

_GAP, _BOTTOM, _TITLE = 86, 52, 30  # pixels: between panels, below the last one, above the first
_LINE_HEIGHT = 17  # pixels: of each further line of a title


@dataclass(frozen=True)
class Panel:
    """One coordinate system of a figure, with its traces and the settings of its axes."""

    title: str  # escaped, in lines that fit a phone's width
    traces: Sequence[Trace]
    x: Mapping[str, Any] = field(default_factory=dict)  # settings of the horizontal axis
    y: Mapping[str, Any] = field(default_factory=dict)


def figure(
    panels: Sequence[Panel], *, height: int = 260, beside: int = 1, same_y: bool = False, legend: bool = True,
    **layout: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the plotly description of panels below one another.

    height: of one panel, in pixels
    beside: how many panels a wide page may place side by side
    same_y: all panels have the vertical range of the first
    layout: further settings of the layout
    """
    further = _LINE_HEIGHT * max((panel.title.count("<br>") for panel in panels), default=0)
    gap, above = _GAP + further, _TITLE + further
    inner = len(panels) * height + (len(panels) - 1) * gap
    described: dict[str, Any] = {
        "height": inner + above + _BOTTOM + (30 if legend else 0),
        "margin": {"l": 58, "r": 14, "t": above, "b": _BOTTOM},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 12},
        "hovermode": "closest",
        "showlegend": legend,
        "annotations": [],
    }
    if legend:
        described["legend"] = {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
        }
    data: list[Trace] = []
    for index, panel in enumerate(panels):
        number = "" if index == 0 else str(index + 1)
        top = 1 - index * (height + gap) / inner
        domain = [round(max(0.0, top - height / inner), DIGITS), round(top, DIGITS)]
        described[f"xaxis{number}"] = {"anchor": f"y{number}", "automargin": True, "zeroline": False} | dict(panel.x)
        described[f"yaxis{number}"] = {
            "anchor": f"x{number}",
            "domain": domain,
            "automargin": True,
            "zeroline": False,
        } | dict(panel.y)
        if same_y and index:
            described[f"yaxis{number}"]["matches"] = "y"
        described["annotations"].append(_title(panel.title, domain[1]))
        data += [trace | {"xaxis": f"x{number}", "yaxis": f"y{number}"} for trace in panel.traces]
    made: dict[str, Any] = {"data": data, "layout": described | layout}
    if min(beside, len(panels)) > 1:
        made["grid"] = {"panels": len(panels), "beside": beside, "height": height, "gap": gap}
    return made


def axis(title: str, **settings: Any) -> dict[str, Any]:
    """Return the settings of an axis with a title."""
    return {"title": {"text": title, "standoff": 8}} | settings


def whole_axis(title: str, count: int, **settings: Any) -> dict[str, Any]:
    """Return the settings of an axis of whole numbers below `count`, with at most about ten ticks."""
    return axis(title, dtick=_whole_step(count), tick0=0, **settings)


def _whole_step(count: int) -> int:
    return next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if count / step <= 10.5)


def rounded(values: Any) -> list[Any]:
    """Return numbers of any shape as nested lists with 5 significant digits; NaN and infinity become None.

    >>> rounded([[1 / 3, float("nan")], [2, 1e-9 / 7]])
    [[0.33333, None], [2.0, 1.4286e-10]]
    """
    array = np.asarray([np.nan if value is None else value for value in values] if _is_flat(values) else values, float)
    rows = array.reshape(-1).tolist()
    flat = np.empty(len(rows), object)
    flat[:] = [rounded_number(value) for value in rows]
    nested: list[Any] = flat.reshape(array.shape).tolist()
    return nested


def rounded_number(value: float | None) -> float | None:
    """Return a number with 5 significant digits; None for NaN, infinity and None."""
    return float(f"{value:.{DIGITS}g}") if value is not None and math.isfinite(value) else None


def _is_flat(values: Any) -> bool:
    return not isinstance(values, np.ndarray) and all(value is None or np.isscalar(value) for value in values)


def escaped(text: str) -> str:
    """Return text that plotly shows as it is: plotly reads some HTML, and %{…} in templates.

    >>> escaped("<b>a & %{x}")
    '&lt;b&gt;a &amp; %\\u200b{x}'
    """
    return html.escape(text, quote=False).replace("%{", "%\u200b{")


def with_opacity(colour: str, opacity: float) -> str:
    """Return a colour #rrggbb for plotly, with its opacity.

    >>> with_opacity("#0080ff", 0.5)
    'rgba(0,128,255,0.5)'
    """
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def in_lines(text: str) -> str:
    """Return text as a title for plotly: escaped, in lines that fit a phone's width, broken after / - _ . or a space.

    >>> in_lines("sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2")
    'sentence-transformers/paraphrase-<br>multilingual-MiniLM-L12-v2'
    """
    lines = [""]
    for word in re.findall(rf"[^/\-_. ]{{0,{LINE - 1}}}[/\-_. ]|[^/\-_. ]{{1,{LINE}}}", text):
        if len(lines[-1]) + len(word.rstrip()) > LINE:
            lines.append("")
        lines[-1] += word
    return "<br>".join(escaped(line.strip()) for line in lines)


def stack_name(model: str, stack: str) -> str:
    """Return model and stack as the title of a panel; a name that ends in the stack's does not repeat it."""
    ending = "" if model.rstrip("/").endswith(stack) else f", {stack}"
    return in_lines(short_name(model) + ending)


def null_band(span: tuple[float, float], level: tuple[float, float | None], name: str, **settings: Any) -> Trace:
    """Return the central 95% of a null, mean ± 1.96 standard deviations, as a filled band over a horizontal span.

    level: mean and standard deviation; without one, a line at the mean
    """
    low, high = null_range(level)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": rounded([span[0], span[1], span[1], span[0], span[0]]),
        "y": rounded([low, low, high, high, low]),
        "fill": "toself",
        "fillcolor": BAND,
        "line": {"width": 1 if low == high else 0, "color": NULL_GREY},
        "name": name,
        "hoverinfo": "skip",
    } | settings


def null_range(level: tuple[float, float | None]) -> tuple[float, float]:
    """Return mean ± 1.96 standard deviations."""
    mean, std = level
    margin = 1.96 * (std or 0.0)
    return mean - margin, mean + margin


def legend_entry(name: str, group: str, **marks: Any) -> Trace:
    """Return a trace without points that only gives a group of traces its entry in the legend."""
    return {
        "type": "scatter",
        "x": [None],
        "y": [None],
        "name": name,
        "legendgroup": group,
        "hoverinfo": "skip",
        "xaxis": "x",
        "yaxis": "y",
    } | marks


def colour_bar(title: str, **settings: Any) -> dict[str, Any]:
    """Return a narrow colour bar without a frame."""
    return {"title": {"text": title, "side": "right"}, "thickness": 12, "outlinewidth": 0} | settings


def layer_bar(span: int) -> dict[str, Any]:
    """Return the colour bar of layers, with ticks at whole numbers; span: the last layer minus the first."""
    return colour_bar("layer", dtick=_whole_step(span + 1), tick0=0)


def columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns, for the table of a figure; a float is rounded, a missing value is None."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [_cell(row.get(name)) for row in rows] for name in names}


def _cell(value: Any) -> Any:
    return rounded_number(float(value)) if isinstance(value, (float, np.floating)) else value


def _title(text: str, top: float) -> dict[str, Any]:
    """Return the title of a panel as an annotation at its upper left corner."""
    return {
        "text": f"<b>{text}</b>",
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 4,
        "showarrow": False,
        "font": {"size": 13},
        "align": "left",
    }
