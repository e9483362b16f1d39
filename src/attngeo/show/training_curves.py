"""Figures of a training run: the scores of each layer over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.errors import InputError
from attngeo.show.canvas import COLUMN, DASHED, GREY, PAGE, for_print, new_figure, panel_title, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import ColorType

    from attngeo.training.monitoring.records import Record

    Layer = tuple[str, int]  # stack and number; the stack is "" where records do not name it

_PANELS = {
    "symmetry": "1 symmetric, −1 skew",
    "directionality": "below 0 columns dominate",
    "max_logit": "largest |attention logit|",
}


@for_print
def training_figure(records: Sequence[Record]) -> Figure:
    """Draw the symmetry and the directionality of each layer over the steps, one row of panels per stack.

    records: as `attngeo.Monitor`, `attngeo track` or `attngeo pretrain` write them. The largest attention logits are
    drawn too where they were measured.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    records = [record for record in records if record.get("symmetry")]
    if not records:
        raise InputError("records: none contains scores, so there is nothing to draw")
    all_layers = list(dict.fromkeys(layer for record in records for layer in record_layers(record)))
    names = [name for name in _PANELS if any(name in record for record in records)]
    stacks = list(dict.fromkeys(stack for stack, _ in all_layers))
    figure = new_figure(COLUMN if len(names) == 1 else PAGE, 2.5 * len(stacks))
    grid = figure.subplots(len(stacks), len(names), squeeze=False)
    for axes, stack in zip(grid, stacks, strict=True):
        numbers = sorted(number for other, number in all_layers if other == stack)
        edges = [number - 0.5 for number in (*numbers, numbers[-1] + 1)]
        dark = ListedColormap(colormaps["viridis"](range(236)))  # without the yellow end, which is faint on white
        colours = ScalarMappable(BoundaryNorm(edges, dark.N), dark)
        for ax, name in zip(axes, names, strict=True):
            for number in numbers:
                colour = colours.to_rgba(number)  # type: ignore[arg-type]  # the stubs know arrays only
                _draw_layer(ax, name, records, (stack, number), colour)
            panel_title(ax, f"{stack} {name}".strip().replace("_", " "), _PANELS[name])
            ax.set_xlabel("step")
            ax.xaxis.get_major_locator().set_params(integer=True)
            style_axes(ax)
            if name == "directionality":
                ax.axhline(0, color=GREY, linewidth=1, linestyle=DASHED, zorder=1)
        bar = figure.colorbar(colours, ax=axes[-1], label="layer", ticks=numbers[:: max(1, len(numbers) // 12)])
        bar.outline.set_visible(False)
        bar.minorticks_off()
        bar.ax.tick_params(length=0)
    return figure


def record_layers(record: Record) -> list[Layer]:
    """Return the layers of a record, in the order of its lists; records of pre-training do not name their stack."""
    count = len(record.get("symmetry") or ())
    return list(zip(record.get("stack", [""] * count), record.get("layer", range(count)), strict=True))


def _draw_layer(ax: Axes, name: str, records: Sequence[Record], layer: Layer, colour: ColorType) -> None:
    """Draw one score of one layer over the steps at which it was measured."""
    points = [
        (record["step"], record[name][layers.index(layer)])
        for record in records
        if record.get(name)
        and layer in (layers := record_layers(record))
        and record[name][layers.index(layer)] is not None
    ]
    if points:
        steps, values = zip(*points, strict=True)
        ax.plot(steps, values, color=colour, linewidth=1.2, marker="o" if len(points) < 20 else "", markersize=2.5)
