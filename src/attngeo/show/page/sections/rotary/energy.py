"""The energy of rotary pairs against their frequency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.arrays import Floats
from attngeo.io.names import short_name
from attngeo.show.canvas import stack_colour
from attngeo.show.page.section import PageFigure
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
    stack_name,
    whole_axis,
    with_opacity,
)

if TYPE_CHECKING:
    import polars as pl


def energy_figures(part: pl.DataFrame, id: str) -> list[PageFigure]:
    """Return the share of energy against frequency, and a map with a row per head, of one stack of a model."""
    model, stack = part.select("model", "stack").row(0)
    part = part.sort("layer", "head", "frequency", descending=[False, False, True])
    heads = part.partition_by("layer", "head", maintain_order=True)
    pairs = max(head.height for head in heads)
    energies = np.full((len(heads), pairs), np.nan)  # [heads, pairs], fast to slow
    for index, head in enumerate(heads):
        energies[index, : head.height] = head["energy"].cast(float).fill_null(np.nan).to_numpy()
    kinds: dict[
        tuple[float, ...], list[int]
    ] = {}  # frequencies → the heads that have them, without heads that are zero
    for index, head in enumerate(heads):
        if not head["energy"].has_nulls():
            kinds.setdefault(tuple(head["frequency"]), []).append(index)
    traces: list[Trace] = []
    rows: list[dict[str, Any]] = []
    for frequencies, chosen in kinds.items():
        own = energies[chosen][:, : len(frequencies)]  # [heads, pairs]
        traces += _quantile_traces(np.asarray(frequencies), own, stack, len(kinds) > 1)
        rows += _quantile_rows(np.asarray(frequencies), own)
    traces.append(_equal_shares(part, pairs))
    name = stack_name(model, stack)
    x = axis(
        "frequency of the pair, radians per token", type="log", autorange="reversed", dtick=1, exponentformat="power"
    )
    lines = Panel(name, traces, x, axis("share of energy", rangemode="tozero"))
    label = f"Share of energy against rotary frequency of the heads of {short_name(model)}."
    labels = [f"L{head['layer'][0]}H{head['head'][0]}" for head in heads]
    shares = {"head": labels} | {f"pair {pair}": rounded(energies[:, pair]) for pair in range(pairs)}
    return [
        PageFigure(f"{id}-energy", label, figure([lines], height=300), columns(rows)),
        PageFigure(f"{id}-heads", f"Share of energy of each pair of {short_name(model)}, a row per head.",
                   _energy_map(labels, [int(head["layer"][0]) for head in heads], energies, name), shares),
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
                "fillcolor": with_opacity(colour, opacity),
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


def _equal_shares(part: pl.DataFrame, pairs: int) -> Trace:
    ends = [part["frequency"].min(), part["frequency"].max()]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": rounded(ends),
        "y": rounded([1 / pairs] * 2),
        "line": {"color": NULL_GREY, "width": 1.5, "dash": "dash"},
        "name": "equal shares",
        "hoverinfo": "skip",
    }


def _energy_map(labels: list[str], layers: list[int], energies: Floats, name: str) -> dict[str, Any]:
    """Return a map of energies [heads, pairs]; the vertical axis names the first head of some layers."""
    known = energies[np.isfinite(energies)]
    first = {layer: row for row, layer in reversed(list(enumerate(layers)))}
    step = -(-len(first) // 10)
    ticks = sorted(first)[::step]
    trace = {
        "type": "heatmap",
        "z": rounded(energies),
        "customdata": [[label] * energies.shape[1] for label in labels],
        "hovertemplate": "%{customdata}, pair %{x}: %{z:.4f}<extra></extra>",
        "hoverongaps": False,
        "colorscale": SEQUENTIAL,
        "zmin": 0,
        "zmax": rounded_number(float(np.quantile(known, 0.99))) if known.size else 1.0,
        "colorbar": colour_bar("share of energy"),
    }
    y = axis("layer", tickvals=[first[layer] for layer in ticks], ticktext=[str(layer) for layer in ticks])
    panel = Panel(name, [trace], whole_axis("pair, fast to slow", energies.shape[1]), y)
    return figure([panel], height=min(460, max(180, 3 * len(labels))), legend=False)


def _quantile_rows(frequencies: Floats, energies: Floats) -> list[dict[str, Any]]:
    levels = np.quantile(energies, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0).T  # [pairs, 5]
    names = ("5%", "25%", "median", "75%", "95%")
    return [
        {"heads": len(energies), "frequency": float(frequency)} | dict(zip(names, map(float, row), strict=True))
        for frequency, row in zip(frequencies, levels, strict=True)
    ]
