"""Rotary position embedding: energy against frequency, and the symmetry over offsets with its limit and average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.arrays import Floats, Ints
from attngeo.show.canvas import stack_colour
from attngeo.show.page.section import PageFigure, Section
from attngeo.show.page.sections.description import (
    NULL_GREY,
    SEQUENTIAL,
    Panel,
    Trace,
    axis,
    colour_bar,
    columns,
    figure,
    rounded,
    rounded_number,
    short_name,
    stack_name,
    whole_axis,
)

if TYPE_CHECKING:
    import polars as pl

    from attngeo.weights.scoring.rotary.curves import OffsetCurve, OffsetCurves

FREQUENCY_READING = (
    "A rotary pair of dimensions turns by its frequency from one token to the next: pairs on the left of the first "
    "figure tell neighbours apart, pairs on the right see hardly any position. The line is the median head, the "
    "bands hold half and nine tenths of the heads; in the map, each row is one head."
)
OFFSET_READING = (
    " The symmetry s(Δ) compares a query and a key Δ tokens apart with the same two exchanged; it levels out at its "
    "limit s̄, and the average over the window the model was made for lies near it."
)
EXACT = 32  # offsets up to this one are all drawn, later ones at growing distances
DRAWN = 160  # offsets drawn, about
ZERO = 0.5  # where the offset 0 stands on the logarithmic axis


def rotary_section(
    frequencies: pl.DataFrame | None, curves: Sequence[OffsetCurves] = (), *, id: str = "rotary"
) -> Section:
    """Return the energy of rotary pairs against their frequency, and s(Δ) by offset and by layer.

    frequencies: columns as in `ScoreTable.frequencies`; None or empty: nothing is known about them
    curves:      as `offset_curves` returns them, of one or several models

    >>> rotary_section(None).figures
    ()
    """
    figures: list[PageFigure] = []
    if frequencies is not None and frequencies.height:
        for part in frequencies.partition_by("model", "stack", maintain_order=True):
            figures += _energy_figures(part, f"{id}-{len(figures) + 1}")
    energies = len(figures)
    for model in curves:
        for stack in dict.fromkeys(curve.stack for curve in model.layers):
            layers = [curve for curve in model.layers if curve.stack == stack]
            figures += _offset_figures(model, layers, f"{id}-{len(figures) + 1}")
    reading = FREQUENCY_READING * (energies > 0) + OFFSET_READING * (len(figures) > energies)
    return Section(id, "Rotary frequencies", reading.strip(), tuple(figures))


def _energy_figures(part: pl.DataFrame, id: str) -> list[PageFigure]:
    model, stack = part.select("model", "stack").row(0)
    part = part.sort("layer", "head", "frequency", descending=[False, False, True])
    heads = part.partition_by("layer", "head", maintain_order=True)
    pairs = max(head.height for head in heads)
    energies, turns = np.full((2, len(heads), pairs), np.nan)  # [heads, pairs], fast to slow
    for index, head in enumerate(heads):
        energies[index, : head.height] = head["energy"].cast(float).fill_null(np.nan).to_numpy()
        turns[index, : head.height] = head["frequency"].to_numpy()
    kinds = {tuple(row[np.isfinite(row)]): np.all((turns == row) | np.isnan(row), 1) for row in turns}
    traces: list[Trace] = []
    for frequencies, chosen in kinds.items():
        own = energies[chosen][:, : len(frequencies)]
        own = own[np.isfinite(own).all(1)]
        if len(own):
            traces += _quantile_traces(np.asarray(frequencies), own, stack, len(kinds) > 1)
    traces.append(_equal_shares(turns, pairs))
    name = stack_name(model, stack)
    x = axis("frequency of the pair, radians per token", type="log", autorange="reversed", exponentformat="power")
    lines = Panel(name, traces, x, axis("share of energy", rangemode="tozero"))
    label = f"Share of energy against rotary frequency of the heads of {short_name(model)}."
    table = columns(part.select("model", "stack", "layer", "head", "pair", "frequency", "energy").iter_rows(named=True))
    return [
        PageFigure(f"{id}-energy", label, figure([lines], height=300), table),
        PageFigure(f"{id}-heads", f"Share of energy of each pair of {short_name(model)}, a row per head.",
                   _energy_map(heads, energies, turns, name), table),
    ]  # fmt: skip


def _quantile_traces(frequencies: Floats, energies: Floats, stack: str, several: bool) -> list[Trace]:
    """Return the median of energies [heads, pairs] as a line, and two bands around it."""
    colour = stack_colour(stack)
    x = rounded(frequencies)
    traces: list[Trace] = []
    for low, high, opacity, name in ((0.05, 0.95, 0.14, "90% of heads"), (0.25, 0.75, 0.28, "50% of heads")):
        bounds = np.quantile(energies, (low, high), axis=0)  # [2, pairs]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": x + x[::-1],
                "y": rounded(bounds[0]) + rounded(bounds[1][::-1]),
                "fill": "toself",
                "fillcolor": _with_opacity(colour, opacity),
                "line": {"width": 0},
                "name": name,
                "hoverinfo": "skip",
            }
        )
    median = {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": rounded(np.median(energies, 0)),
        "line": {"color": colour, "width": 2.5},
        "hovertemplate": "%{y:.4f} at %{x:.3g} radians per token<extra></extra>",
        "name": f"median of {len(energies)} heads" if several else "median head",
    }
    return [*traces, median]


def _equal_shares(turns: Floats, pairs: int) -> Trace:
    ends = [float(np.nanmin(turns)), float(np.nanmax(turns))]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": rounded(ends),
        "y": rounded([1 / pairs] * 2),
        "line": {"color": NULL_GREY, "width": 1.5, "dash": "dash"},
        "name": "equal shares",
        "hoverinfo": "skip",
    }


def _energy_map(heads: list[pl.DataFrame], energies: Floats, turns: Floats, name: str) -> dict[str, Any]:
    labels = [f"L{head['layer'][0]}H{head['head'][0]}" for head in heads]
    known = energies[np.isfinite(energies)]
    layers = [int(head["layer"][0]) for head in heads]
    first = {layer: row for row, layer in reversed(list(enumerate(layers)))}
    step = -(-len(first) // 10)
    ticks = sorted(first)[::step]
    trace = {
        "type": "heatmap",
        "z": rounded(energies),
        "customdata": [[label] * energies.shape[1] for label in labels],
        "text": rounded(turns),
        "hovertemplate": "%{customdata}, pair %{x}, %{text} radians per token: %{z:.4f}<extra></extra>",
        "hoverongaps": False,
        "colorscale": SEQUENTIAL,
        "zmin": 0,
        "zmax": rounded_number(float(np.quantile(known, 0.99))) if known.size else 1.0,
        "colorbar": colour_bar("share of energy"),
    }
    y = axis("layer", tickvals=[first[layer] for layer in ticks], ticktext=[str(layer) for layer in ticks])
    panel = Panel(name, [trace], whole_axis("pair, fast to slow", energies.shape[1]), y)
    return figure([panel], height=min(460, max(180, 3 * len(heads))), legend=False)


def _offset_figures(model: OffsetCurves, layers: list[OffsetCurve], id: str) -> list[PageFigure]:
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
            "customdata": offsets.astype(int).tolist(),
            "line": {"color": NULL_GREY, "width": 0.8},
            "opacity": 0.5,
            "hovertemplate": f"layer {layer.layer}, offset %{{customdata}}: %{{y:.3f}}<extra></extra>",
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


def _with_opacity(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
