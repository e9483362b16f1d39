"""The symmetry s(Δ) over offsets, with its limit and its average over the window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attngeo.arrays import Floats, Ints
from attngeo.io.names import short_name
from attngeo.show.canvas import stack_colour
from attngeo.show.page.section import PageFigure
from attngeo.show.page.sections.description import (
    NULL_GREY,
    Panel,
    Trace,
    axis,
    figure,
    rounded,
    rounded_number,
    stack_name,
    whole_axis,
)

if TYPE_CHECKING:
    from attngeo.weights.scoring.offsets import OffsetCurve, OffsetCurves

EXACT = 32  # offsets up to this one are all drawn, later ones at growing distances
DRAWN = 160  # offsets drawn, about
ZERO = 0.5  # where the offset 0 stands on the logarithmic axis


def offset_figures(model: OffsetCurves, layers: list[OffsetCurve], id: str) -> list[PageFigure]:
    """Return s(Δ) over the offsets, and s(0), the average over the window and the limit by layer, of one stack."""
    stack = layers[0].stack
    colour = stack_colour(stack)
    chosen = _drawn_offsets(len(model.offsets))
    offsets = model.offsets[chosen]
    values = np.stack([layer.symmetry for layer in layers])[:, chosen]  # [layers, drawn]
    x = rounded(np.where(offsets > 0, offsets, ZERO))
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": rounded(row),
            "line": {"color": NULL_GREY, "width": 0.8},
            "opacity": 0.5,
            "hovertemplate": f"layer {layer.layer}: %{{y:.3f}}<extra></extra>",
            "name": "layers",
            "legendgroup": "layers",
            "showlegend": number == 0,
        }
        for number, (layer, row) in enumerate(zip(layers, values, strict=True))
    ]
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": rounded(np.median(values, 0)),
            "customdata": offsets.astype(int).tolist(),
            "line": {"color": colour, "width": 2.2},
            "hovertemplate": "median layer, offset %{customdata}: %{y:.3f}<extra></extra>",
            "name": "median layer",
        }
    )
    limits = [layer.limit for layer in layers]
    averages = [layer.window_average for layer in layers]
    windows = " or ".join(f"{window:,}" for window in sorted({one.window for one in layers if one.window is not None}))
    known = [value for value in averages if value is not None]
    if known:
        traces.append(_level(x, float(np.median(known)), f"average over {windows} tokens", "dot"))
    traces.append(_level(x, float(np.median(limits)), "limit s̄", "dash"))
    powers = [10**power for power in range(7) if 10**power <= offsets[-1]]
    across = axis(
        "offset Δ between key and query, tokens",
        type="log",
        tickvals=[ZERO, *powers],
        ticktext=["0", *(f"{power:,}" for power in powers)],
    )
    name = stack_name(model.model, stack)
    curve = Panel(name, traces, across, axis("symmetry s(Δ)"))
    table = {"offset": offsets.astype(int).tolist()} | {
        f"layer {layer.layer}": rounded(row) for layer, row in zip(layers, values, strict=True)
    }
    return [
        PageFigure(f"{id}-offsets", f"Symmetry over the offset between two tokens of {short_name(model.model)}.",
                   figure([curve], height=320), table),
        _by_layer(model, layers, values[:, 0], averages, windows, colour, id),
    ]  # fmt: skip


def _by_layer(
    model: OffsetCurves,
    layers: list[OffsetCurve],
    plain: Floats,
    averages: list[float | None],
    windows: str,
    colour: str,
    id: str,
) -> PageFigure:
    numbers, limits = [layer.layer for layer in layers], [layer.limit for layer in layers]
    shown = [
        ("s(0), the plain symmetry", rounded(plain), "circle", colour),
        (f"average over {windows} tokens", rounded(averages), "square-open", NULL_GREY),
        ("limit s̄ over all offsets", rounded(limits), "diamond", NULL_GREY),
    ]
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [x for number in numbers for x in (number, number, None)],
            "y": [y for pair in zip(rounded(plain), rounded(limits), strict=True) for y in (*pair, None)],
            "line": {"color": NULL_GREY, "width": 1},
            "opacity": 0.6,
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "x": numbers,
            "y": values,
            "marker": {"symbol": symbol, "color": own, "size": 8},
            "hovertemplate": "layer %{x}: %{y:.3f}",
            "name": name,
        }
        for name, values, symbol, own in shown
        if any(value is not None for value in values)
    ]
    last = max(numbers)
    x = whole_axis("layer", last + 1, range=[min(numbers) - 0.5, last + 0.5])
    panel = Panel(stack_name(model.model, layers[0].stack), traces, x, axis("symmetry"))
    table = {"layer": numbers, "symmetry at offset 0": rounded(plain), "window average": rounded(averages)}
    label = f"Symmetry at offset 0, over the window and in the limit, of each layer of {short_name(model.model)}."
    return PageFigure(f"{id}-layers", label, figure([panel], height=280), table | {"limit": rounded(limits)})


def _level(x: list[float], value: float, name: str, dash: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x[0], x[-1]],
        "y": [rounded_number(value)] * 2,
        "line": {"color": NULL_GREY, "width": 2, "dash": dash},
        "hovertemplate": "%{y:.3f}",
        "name": f"{name}, median layer",
    }


def _drawn_offsets(count: int) -> Ints:
    """Return the positions of the offsets that are drawn: all small ones, then at distances that grow."""
    if count <= DRAWN:
        return np.arange(count)
    later = np.geomspace(EXACT, count - 1, DRAWN - EXACT)
    return np.unique(np.concatenate([np.arange(EXACT), np.rint(later).astype(np.int64)]))
