"""Models that rotate queries and keys by their positions, as text, as figures, and as a section of a page.

frequency_report   energy and strongest pair of each layer
frequency_figure   energy of the rotary pairs of all heads against their frequency
rotary_figure      the same, and symmetry over the offset between two tokens
rotary_section     the same on a page
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from attngeo.arrays import Floats, Ints
from attngeo.charts import (
    COLOURS,
    GREY,
    LIGHT_GREY,
    PAGE,
    Axis,
    Band,
    Bar,
    Figure,
    Heatmap,
    Level,
    Line,
    Panel,
    Points,
    Series,
    stack_colour,
)
from attngeo.io.names import short_name
from attngeo.show.matplotlib import drawn
from attngeo.show.page import PageFigure, Section, stack_name
from attngeo.show.tables import ABOVE, PLAIN, Terminal, bar, padded
from attngeo.weights.scoring.rotary import FAST, SLOW, frequency_summary

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure as Drawing

    from attngeo.weights.scoring.offsets import OffsetCurve, OffsetCurves

_HEIGHT = 2.9  # inches, of the panels of one stack
_EXACT = 32  # offsets up to this one are all on a page, later ones at growing distances
_DRAWN = 160  # offsets on a page, about
_ZERO = 0.5  # where the offset 0 stands on the logarithmic axis
_SHARES = ("fast", "medium", "slow")
_LEGEND = (
    f"fast: share of energy in pairs that turn once within {FAST} tokens, mean over the heads of the layer",
    f"slow: the same for pairs that need more than {SLOW:,} tokens for a turn; medium: all other pairs",
    "head, pair, share: the pair with the largest share of the energy of its head; pair 0 is the first",
    "tokens per turn: the offset after which this pair has turned once",
    "prefers offset: where this pair adds most for equal tokens; below 0 the key is before the query",
)


def frequency_report(frequencies: pl.DataFrame, terminal: Terminal = PLAIN) -> str:
    """Return a table per model and stack with a row per layer, then what its columns mean.

    frequencies: columns as in `ScoreTable.frequencies`
    """
    sections = [
        "\n".join([f"{model}  {stack}", *_table_lines(part, terminal), ""])
        for (model, stack), part in frequency_summary(frequencies).group_by("model", "stack", maintain_order=True)
    ]
    return "\n".join([*sections, *_LEGEND, ""])


def _table_lines(part: pl.DataFrame, terminal: Terminal) -> list[str]:
    """Return a line of titles and a line per layer, with bars where there is room for them."""
    titles = ["layer", *_SHARES, "head", "pair", "share", "tokens per turn", "prefers offset"]
    rows = [
        [
            str(row["layer"]),
            *(f"{row[name]:.3f}{' ' + bar(row[name]) if terminal.bars else ''}" for name in _SHARES),
            str(row["head"]),
            str(row["pair"]),
            f"{row['share']:.3f}",
            _tokens(row["turn"]),
            _tokens(row["offset"]),
        ]
        for row in part.iter_rows(named=True)
    ]
    body = padded([titles, *rows], right=[True] * len(titles))
    if terminal.bars and len("  ".join(body[0])) > terminal.width:
        return _table_lines(part, replace(terminal, bars=False))
    for row in body[1:]:
        for column in range(1, 1 + len(_SHARES)):
            row[column] = terminal.paint(row[column], ABOVE)
    return ["  ".join(row).rstrip() for row in body]


def _tokens(count: float | None) -> str:
    """Return a number of tokens: one decimal below 100, thousands separated above."""
    if count is None:
        return "-"
    return f"{round(count, 1) + 0.0:.1f}" if abs(count) < 100 else f"{count:,.0f}"


# Figures. On paper each head and each offset has its place; a page has quantiles and a choice of the offsets.


class _Energies:
    """The energy of the rotary pairs of the heads of one stack, [heads, pairs] from fast to slow."""

    def __init__(self, key: tuple[str, str], part: pl.DataFrame) -> None:
        self.key = key  # model and stack
        part = part.sort("layer", "head", "frequency", descending=[False, False, True])
        heads = part.partition_by("layer", "head", maintain_order=True)
        self.frequencies = [head["frequency"].to_list() for head in heads]
        self.layers = [int(head["layer"][0]) for head in heads]
        self.labels = [f"L{head['layer'][0]}H{head['head'][0]}" for head in heads]
        self.values = np.full((len(heads), max(head.height for head in heads)), np.nan)
        for row, head in zip(self.values, heads, strict=True):
            row[: head.height] = head["energy"].cast(float).fill_null(np.nan).to_numpy()

    def kinds(self) -> list[tuple[tuple[float, ...], Floats]]:
        """Return each set of frequencies with the energies [heads, n] of its heads, without heads that are zero."""
        found: dict[tuple[float, ...], list[Floats]] = {}
        for frequencies, values in zip(self.frequencies, self.values, strict=True):
            if np.isfinite(own := values[: len(frequencies)]).all():
                found.setdefault(tuple(frequencies), []).append(own)
        return [(frequencies, np.array(rows)) for frequencies, rows in found.items()]

    def curves(self, every_head: bool) -> Panel:
        """Return the share of energy against frequency: the median, and each head or the quantiles of all."""
        series: list[Series] = []
        for own, values in zip(self.frequencies, self.values, strict=True) if every_head else ():
            series.append(Line(own, values[: len(own)], LIGHT_GREY, "heads", width=0.8, opacity=0.5))
        several = len(kinds := self.kinds()) > 1
        for number, (frequencies, energies) in enumerate(kinds):
            colour = COLOURS[number % len(COLOURS)] if several else stack_colour(self.key[1])
            for low, high, opacity, label in (
                () if every_head else ((0.05, 0.95, 0.14, "90% of heads"), (0.25, 0.75, 0.28, "50% of heads"))
            ):
                bounds = np.quantile(energies, (low, high), axis=0)  # [2, n]
                series.append(Band(frequencies, bounds[0], bounds[1], colour, label, opacity))
            label = f"median of {len(energies)} heads" if several else "median head"
            hover = "{y:.4f} at {x:.3g} radians per token"
            series.append(Line(frequencies, np.median(energies, 0), colour, label, 2.3, hover=hover))
        series.append(Level(1 / self.values.shape[1], label="equal shares"))
        x = Axis("frequency of the pair, radians per token", log=True, reverse=True, grid=not every_head)
        return Panel("share of energy", series, x, Axis("share of energy", zero=True), _note(*self.key))

    def heatmap(self) -> Panel:
        """Return the energies with a row per head; the vertical axis names the first head of some layers."""
        known = self.values[np.isfinite(self.values)]
        top = float(np.quantile(known, 0.99)) if known.size else 1.0
        first = {layer: row for row, layer in reversed(list(enumerate(self.layers)))}
        ticks = {float(first[layer]): str(layer) for layer in sorted(first)[:: -(-len(first) // 10)]}
        names = [[label] * self.values.shape[1] for label in self.labels]
        hover = "{name}, pair {x}: {z:.4f}"
        heat = Heatmap(self.values, (0, top), bar=Bar("share of energy", open=True), hover=hover, names=names)
        x, y = Axis("pair, fast to slow", whole=True), Axis("layer", ticks=ticks)
        return Panel("share of energy", [heat], x, y, note="one row per head")


def _offset_panels(curves: OffsetCurves, layers: list[OffsetCurve], chosen: Ints) -> tuple[Panel, Panel]:
    """Return s(Δ) over the offsets, and s(0), the average over the window and the limit by layer, of one stack.

    chosen: which offsets are drawn
    """
    stack, colour = layers[0].stack, stack_colour(layers[0].stack)
    offsets = curves.offsets[chosen]
    values = np.stack([layer.symmetry for layer in layers])[:, chosen]  # [layers, drawn]
    x = np.where(offsets > 0, offsets, _ZERO)
    series: list[Series] = [
        Line(x, row, LIGHT_GREY, "layers", width=0.8, opacity=0.5, hover=f"layer {layer.layer}: {{y:.3f}}")
        for layer, row in zip(layers, values, strict=True)
    ]
    hover, details = "median layer, offset {detail}: {y:.3f}", [str(offset) for offset in offsets.astype(int)]
    series.append(Line(x, np.median(values, 0), colour, "median layer", 2.2, hover=hover, details=details))
    limits, averages = [layer.limit for layer in layers], [layer.window_average for layer in layers]
    known = [value for value in averages if value is not None]
    windows = " or ".join(f"{window:,}" for window in sorted({one.window for one in layers if one.window is not None}))
    window = f"average over {windows} tokens"
    for name, dash, of_layers in ((window, ":", known), ("limit s̄", "--", limits)):
        if of_layers:
            median = float(np.median(of_layers))
            series.append(Level(median, label=f"{name}, median layer", width=2, dash=dash, hover="{y:.3f}"))
    powers = [10**power for power in range(7) if 10**power <= offsets[-1]]
    ticks = {_ZERO: "0"} | {float(power): f"{power:,}" for power in powers}
    across = Axis("offset Δ between key and query, tokens", log=True, ticks=ticks, grid=False)

    numbers, plain = [layer.layer for layer in layers], values[:, 0].tolist()
    joins = [end for ends in zip(plain, limits, strict=True) for end in (*ends, None)]
    by_layer: list[Series] = [Line(np.repeat(numbers, 3), joins, LIGHT_GREY, width=1.5)]
    for drawn_values, shade, label, symbol, size in (
        (plain, colour, "s(0), the plain symmetry", "circle", 8),
        (averages, GREY, window, "square-open", 8),
        (limits, GREY, "limit s̄ over all offsets", "diamond", 7),
    ):
        if label != window or known:
            by_layer.append(Points(numbers, drawn_values, shade, label, symbol, size, hover="layer {x}: {y:.3f}"))
    downwards = Axis("layer", whole=True, range=(min(numbers) - 0.5, max(numbers) + 0.5), grid=False)
    over_offsets = Panel("symmetry s(Δ)", series, across, Axis("symmetry s(Δ)"), _note(curves.model, stack))
    return over_offsets, Panel("symmetry by layer", by_layer, downwards, Axis("symmetry"))


def frequency_figure(frequencies: pl.DataFrame) -> Drawing:
    """Draw how the heads of a model spread their energy over the frequencies of their rotary pairs.

    frequencies: columns as in `ScoreTable.frequencies`

    For each model and stack, the left panel has a grey line per head and their median, the right panel a row per head.
    """
    return rotary_figure(frequencies, ())


def rotary_figure(frequencies: pl.DataFrame | None, curves: Sequence[OffsetCurves]) -> Drawing:
    """Draw the panels of `frequency_figure`, and of the curves s(Δ) over offsets (left) and, for each layer, s(0), the
    average over the window and the limit (right); those of one model and stack below each other.
    """
    rows: dict[tuple[str, str], list[Panel]] = {}
    for energies in _energies(frequencies):
        rows.setdefault(energies.key, []).extend((energies.curves(every_head=True), energies.heatmap()))
    for model, stack, layers in _curves(curves):
        panels = _offset_panels(model, layers, np.arange(len(model.offsets)))
        rows.setdefault((model.model, stack), []).extend(panels)
    every = [panel for row in rows.values() for panel in row]
    return drawn(Figure(every, 2, (1.15, 1), size=(PAGE, _HEIGHT * len(every) / 2), legend="inside"))


def _energies(frequencies: pl.DataFrame | None) -> list[_Energies]:
    """Return the energies of each stack of each model."""
    if frequencies is None:
        return []
    parts = frequencies.group_by("model", "stack", maintain_order=True)
    return [_Energies(key, part) for key, part in parts]


def _curves(curves: Sequence[OffsetCurves]) -> list[tuple[OffsetCurves, str, list[OffsetCurve]]]:
    """Return the curves of each stack of each model."""
    return [
        (model, stack, [curve for curve in model.layers if curve.stack == stack])
        for model in curves
        for stack in dict.fromkeys(curve.stack for curve in model.layers)
    ]


def _note(model: str, stack: str) -> str:
    """Return the last part of a model's path and the stack, in lines that fit half a page."""
    return "\n".join(wrap(f"{model.rstrip('/').split('/')[-1]}  {stack}", 56))


_FREQUENCY_READING = (
    "A rotary pair of dimensions turns by its frequency from one token to the next: pairs on the left of the first "
    "figure tell neighbours apart, pairs on the right see hardly any position. The line is the median head, the "
    "bands hold half and nine tenths of the heads; in the map, each row is one head, and values above the upper end "
    "of the colour bar have its colour."
)
_OFFSET_READING = (
    " The symmetry s(Δ) compares a query and a key Δ tokens apart with the same two exchanged. Far away it varies "
    "around its limit s̄; a layer with much energy in slow pairs gets there beyond the window the model was made for, "
    "so the average over that window is drawn too."
)


def rotary_section(frequencies: pl.DataFrame | None, curves: Sequence[OffsetCurves] = ()) -> Section:
    """Return the energy of rotary pairs against their frequency, and s(Δ) by offset and by layer.

    frequencies: columns as in `ScoreTable.frequencies`; None or empty: nothing is known about them
    curves:      as `offset_curves` returns them, of one or several models

    >>> rotary_section(None).figures
    ()
    """
    figures: list[PageFigure] = []
    for energies in _energies(frequencies):
        figures += _energy_figures(energies, f"rotary-{len(figures) + 1}")
    count = len(figures)
    for model, stack, layers in _curves(curves):
        figures += _offset_figures(model, stack, layers, f"rotary-{len(figures) + 1}")
    reading = _FREQUENCY_READING * (count > 0) + _OFFSET_READING * (len(figures) > count)
    return Section("rotary", "Rotary frequencies", reading.strip(), tuple(figures))


def _energy_figures(energies: _Energies, id: str) -> list[PageFigure]:
    name, values = short_name(energies.key[0]), energies.values
    curves, heads = (
        replace(panel, title=stack_name(*energies.key))
        for panel in (energies.curves(every_head=False), energies.heatmap())
    )
    quantiles = {"5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95}
    shares = [
        {"heads": len(own), "frequency": frequency} | dict(zip(quantiles, levels, strict=True))
        for frequencies, own in energies.kinds()
        for frequency, levels in zip(frequencies, np.quantile(own, [*quantiles.values()], axis=0).T, strict=True)
    ]
    pairs = [
        {"head": label} | {f"pair {pair}": energy for pair, energy in enumerate(row)}
        for label, row in zip(energies.labels, values, strict=True)
    ]
    height = min(460, max(180, 3 * len(values)))
    label = f"Share of energy against rotary frequency of the heads of {name}."
    other = f"Share of energy of each pair of {name}, a row per head."
    return [
        PageFigure(f"{id}-energy", label, Figure([curves], height=300), shares),
        PageFigure(f"{id}-heads", other, Figure([heads], height=height), pairs),
    ]


def _offset_figures(curves: OffsetCurves, stack: str, layers: list[OffsetCurve], id: str) -> list[PageFigure]:
    chosen = np.arange(last := len(curves.offsets))
    if last > _DRAWN:  # all small offsets, then at distances that grow
        later = np.rint(np.geomspace(_EXACT, last - 1, _DRAWN - _EXACT)).astype(np.int64)
        chosen = np.unique(np.concatenate([chosen[:_EXACT], later]))
    name, title = short_name(curves.model), stack_name(curves.model, stack)
    over_offsets, by_layer = (replace(panel, title=title) for panel in _offset_panels(curves, layers, chosen))
    offsets = [
        {"offset": int(curves.offsets[at])} | {f"layer {layer.layer}": layer.symmetry[at] for layer in layers}
        for at in chosen
    ]
    averages = [
        {
            "layer": layer.layer,
            "symmetry at offset 0": layer.symmetry[0],
            "window average": layer.window_average,
            "limit": layer.limit,
        }
        for layer in layers
    ]
    label = f"Symmetry over the offset between two tokens of {name}."
    other = f"Symmetry at offset 0, over the window and in the limit, of each layer of {name}."
    return [
        PageFigure(f"{id}-offsets", label, Figure([over_offsets], height=320), offsets),
        PageFigure(f"{id}-layers", other, Figure([by_layer], height=280), averages),
    ]
