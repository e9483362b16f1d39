"""Curves of a run: how symmetric and how directional every layer is, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attngeo.errors import InputError
from attngeo.show.canvas import GREY, new_figure, style_axes, panel_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = {
    "symmetry": "1 symmetric, −1 skew",
    "directionality": "below 0 columns dominate",
    "max_logit": "largest |attention logit|",
}


def training_figure(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Symmetry and directionality of every layer over the steps, one row of panels for each stack.

    `records` are those of `attngeo.Monitor`, `attngeo track` or `attngeo pretrain`; largest logits are drawn where
    they were measured.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    rows = [row for row in records if row.get("symmetry")]
    if not rows:
        raise InputError("no records with scores, nothing to draw")
    places = _places(rows)
    names = [name for name in _PANELS if any(name in row for row in rows)]
    stacks = list(dict.fromkeys(stack for stack, _ in places))
    figure = new_figure(4.2 * len(names) + 0.8, 3.3 * len(stacks))
    grid = figure.subplots(len(stacks), len(names), squeeze=False)
    for axes, stack in zip(grid, stacks, strict=True):
        layers = sorted(layer for its, layer in places if its == stack)
        edges = [layer - 0.5 for layer in (*layers, layers[-1] + 1)]
        dark = ListedColormap(colormaps["viridis"](range(236)))  # without the yellow, lost on white
        shade: Any = ScalarMappable(BoundaryNorm(edges, dark.N), dark)
        for ax, name in zip(axes, names, strict=True):
            for layer in layers:
                _draw(ax, name, rows, (stack, layer), shade.to_rgba(layer))
            panel_title(ax, f"{stack} {name}".strip().replace("_", " "), _PANELS[name])
            ax.set_xlabel("step")
            ax.xaxis.get_major_locator().set_params(integer=True)
            style_axes(ax)
            if name == "directionality":
                ax.axhline(0, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        bar = figure.colorbar(shade, ax=axes[-1], label="layer", ticks=layers[:: max(1, len(layers) // 12)])
        bar.outline.set_visible(False)
        bar.minorticks_off()
        bar.ax.tick_params(length=0)
    return figure


def _places(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Stack and number of every layer that occurs."""
    return list(dict.fromkeys(place for row in rows for place in _of(row)))


def _of(row: Mapping[str, Any]) -> list[tuple[str, int]]:
    count = len(row["symmetry"])  # records of pre-training have one stack and do not name it
    return list(zip(row.get("stack", [""] * count), row.get("layer", range(count)), strict=True))


def _draw(ax: Axes, name: str, rows: Sequence[Mapping[str, Any]], place: tuple[str, int], colour: Any) -> None:
    points = [
        (row["step"], row[name][places.index(place)])
        for row in rows
        if row.get(name) and place in (places := _of(row)) and row[name][places.index(place)] is not None
    ]
    if points:
        steps, values = zip(*points, strict=True)
        ax.plot(steps, values, color=colour, linewidth=1.6, marker="o" if len(points) < 20 else "", markersize=3)
