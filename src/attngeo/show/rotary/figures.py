"""Figures of models that rotate queries and keys: energy against frequency, and symmetry over offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.arrays import Floats
from attngeo.show.canvas import (
    BLUE,
    COLOURS,
    DASHED,
    GREY,
    LIGHT_GREY,
    ORANGE,
    PAGE,
    for_print,
    new_figure,
    panel_title,
    style_axes,
)

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from attngeo.weights.scoring.offsets import OffsetCurve, OffsetCurves

_HEIGHT = 2.9  # inches, of the panels of one stack
_MOST_TICKS = 12  # layers that an axis names


def frequency_figure(frequencies: pl.DataFrame) -> Figure:
    """Draw how the heads of a model spread their energy over the frequencies of their rotary pairs.

    frequencies: columns as in `ScoreTable.frequencies`

    For each model and stack, the left panel has a grey line per head and their median, the right panel a row per head.
    """
    return rotary_figure(frequencies, ())


def offset_figure(curves: OffsetCurves) -> Figure:
    """Draw s(Δ) over offsets (left), and s(0), the average over the window and the limit of each layer (right)."""
    return rotary_figure(None, [curves])


@for_print
def rotary_figure(frequencies: pl.DataFrame | None, curves: Sequence[OffsetCurves]) -> Figure:
    """Draw the panels of `frequency_figure` and `offset_figure`, those of one model and stack below each other."""
    rows: dict[tuple[str, str], list[Callable[[SubFigure], None]]] = {}
    for part in [] if frequencies is None else frequencies.partition_by("model", "stack", maintain_order=True):
        rows.setdefault(part.select("model", "stack").row(0), []).append(partial(_draw_energy, part=part))
    for model in curves:
        for stack in dict.fromkeys(curve.stack for curve in model.layers):
            layers = [curve for curve in model.layers if curve.stack == stack]
            row = partial(_draw_offsets, offsets=model.offsets, layers=layers, name=_name(model.model, stack))
            rows.setdefault((model.model, stack), []).append(row)
    panels = [row for of_stack in rows.values() for row in of_stack]
    figure = new_figure(PAGE, _HEIGHT * len(panels))
    for draw, place in zip(panels, figure.subfigures(len(panels), 1, squeeze=False).flat, strict=True):
        draw(place)
    return figure


def _draw_energy(figure: SubFigure, part: pl.DataFrame) -> None:
    lines, image = figure.subplots(1, 2, width_ratios=(1.15, 1))
    heads = part.sort("layer", "head", "frequency", descending=[False, False, True]).partition_by(
        "layer", "head", maintain_order=True
    )
    for head in heads:
        lines.plot(head["frequency"], head["energy"], color=LIGHT_GREY, linewidth=0.5, alpha=0.5, zorder=1)
    pairs = max(head.height for head in heads)
    lines.plot([], [], color=LIGHT_GREY, linewidth=1, label="heads")
    kinds: dict[tuple[float, ...], list[pl.Series]] = {}  # frequencies → energies of the heads that have them
    for head in heads:
        if not head["energy"].has_nulls():  # a head that is zero has no energy
            kinds.setdefault(tuple(head["frequency"]), []).append(head["energy"])
    for colour, (frequencies, energies) in zip(cycle(COLOURS), kinds.items(), strict=False):
        median = np.median(np.array([energy.to_numpy() for energy in energies]), 0)  # [n]
        label = "median head" if len(kinds) == 1 else f"median of {len(energies)} heads"
        lines.plot(frequencies, median, color=colour, linewidth=1.5, zorder=3, label=label)
    lines.axhline(1 / pairs, color=GREY, linewidth=1, linestyle=DASHED, zorder=2, label="equal shares")
    lines.set_xscale("log")
    lines.invert_xaxis()
    lines.set_ylim(bottom=0)
    lines.set_xlabel("frequency of the pair, radians per token")
    panel_title(lines, "share of energy", _name(part["model"][0], part["stack"][0]))
    lines.legend(frameon=False)
    style_axes(lines, grid="y")

    shares = np.full((len(heads), pairs), np.nan)  # [heads, pairs], fast to slow
    for row, head in zip(shares, heads, strict=True):
        row[: head.height] = head["energy"].to_numpy()
    known = shares[np.isfinite(shares)]
    top = float(np.quantile(known, 0.99)) if known.size else 1.0
    picture = image.imshow(shares, aspect="auto", cmap="viridis", vmin=0, vmax=top, interpolation="nearest")
    _label_layers(image, [int(head["layer"][0]) for head in heads])
    image.set_xlabel("pair, fast to slow")
    panel_title(image, "share of energy", "one row per head")
    figure.colorbar(picture, ax=image, shrink=0.85, extend="max")


def _name(model: str, stack: str) -> str:
    """Return the last part of a model's path and the stack, in lines that fit half a page."""
    return "\n".join(wrap(f"{model.rstrip('/').split('/')[-1]}  {stack}", 56))


def _label_layers(ax: Axes, layers: list[int]) -> None:
    """Mark the first head of some layers on the vertical axis."""
    first = {layer: row for row, layer in reversed(list(enumerate(layers)))}
    names = sorted(first)
    step = -(-len(names) // _MOST_TICKS)
    ax.set_yticks([first[layer] for layer in names[::step]], [str(layer) for layer in names[::step]])
    ax.set_ylabel("layer")


def _draw_offsets(figure: SubFigure, offsets: Floats, layers: list[OffsetCurve], name: str) -> None:
    curve, by_layer = figure.subplots(1, 2, width_ratios=(1.15, 1))
    values = np.array([layer.symmetry for layer in layers])  # [layers, k]
    for row in values:
        curve.plot(offsets, row, color=LIGHT_GREY, linewidth=0.5, alpha=0.6, zorder=1)
    curve.plot([], [], color=LIGHT_GREY, linewidth=1, label="layers")
    curve.plot(offsets, np.median(values, 0), color=BLUE, linewidth=1.5, zorder=3, label="median layer")
    limits, averages = [layer.limit for layer in layers], [layer.window_average for layer in layers]
    known = [value for value in averages if value is not None]
    windows = sorted({layer.window for layer in layers if layer.window is not None})
    window = " or ".join(f"{window:,}" for window in windows)
    lines: list[tuple[float, str, Any, str]] = [(float(np.median(limits)), ORANGE, DASHED, "limit s̄, median layer")]
    if known:
        lines.append((float(np.median(known)), GREY, "-", f"average over {window} tokens, median layer"))
    for height, (value, colour, style, label) in enumerate(lines):
        curve.axhline(value, color=colour, linewidth=1.5, linestyle=style, zorder=5 - height, label=label)
    curve.set_xscale("symlog", linthresh=1, linscale=0.4)
    curve.set_xlim(0, offsets[-1])
    ticks = [0, *(10**power for power in range(6) if 10**power <= offsets[-1])]
    curve.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    curve.set_xlabel("offset Δ between key and query, tokens")
    panel_title(curve, "symmetry s(Δ)", name)
    curve.legend(frameon=False)
    style_axes(curve, grid="y")

    numbers = [layer.layer for layer in layers]
    by_layer.plot(numbers, values[:, 0], "o", color=BLUE, markersize=3.5, label="s(0), the plain symmetry")
    if known:
        shown = [np.nan if value is None else value for value in averages]
        by_layer.plot(numbers, shown, "s", color=GREY, markersize=3.5, label=f"average over {window} tokens")
    by_layer.plot(numbers, limits, "D", color=ORANGE, markersize=3, label="limit s̄ over all offsets")
    by_layer.vlines(
        numbers, np.minimum(values[:, 0], limits), np.maximum(values[:, 0], limits), color=LIGHT_GREY, zorder=0
    )
    by_layer.set_xlim(min(numbers) - 0.5, max(numbers) + 0.5)
    by_layer.set_xlabel("layer")
    by_layer.xaxis.get_major_locator().set_params(integer=True)
    panel_title(by_layer, "symmetry by layer")
    by_layer.legend(frameon=False)
    style_axes(by_layer, grid="y")
