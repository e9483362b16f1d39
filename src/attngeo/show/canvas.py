"""Colours and their limits, sizes for print, axis styling, token labels and figure saving, shared by all figures.

Figures are made for a paper: one column (`COLUMN`) or the whole page (`PAGE`) wide, with letters of 7 to 9 points (6
for tokens). No function uses matplotlib's `pyplot`, so figures need no display and nothing stays open.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, ParamSpec

import numpy as np

from attngeo.arrays import Floats
from attngeo.io.files import atomic_file, write_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, distinguishable with every kind of colour vision.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
YELLOW, SKY, BLACK = "#E69F00", "#56B4E9", "#000000"
COLOURS = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK)

# The same stack has the same colour in every figure.
STACK_COLOURS = {
    "encoder": BLUE,
    "decoder": ORANGE,
    "text": GREEN,
    "vision": PINK,
    "audio": YELLOW,
    "cross": SKY,
}

# Greys for controls and reference lines.
GREY, LIGHT_GREY, GRID_GREY = "#6b6b6b", "#b0b0b0", "#e6e6e6"

DASHED = (0, (4, 3))  # the line style of reference lines

COLUMN, PAGE = 3.3, 7.0  # inches: the width of a column, and of a page, of a paper
TITLE, TEXT, SMALL, TINY = 9, 8, 7, 6  # points: panel titles, axis labels, ticks and legends, tokens

_PRINT = {
    "font.size": TEXT,
    "axes.labelsize": TEXT,
    "axes.titlesize": TITLE,
    "figure.titlesize": TITLE,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.linewidth": 0.7,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.markersize": 4,
}
_VECTOR = {"pdf.fonttype": 42, "svg.hashsalt": "attngeo"}  # fonts that publishers accept; the same file each time

P = ParamSpec("P")


def for_print(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Let a function draw its figure with the letters and lines of a printed page."""

    @wraps(draw)
    def drawn(*arguments: P.args, **options: P.kwargs) -> Figure:
        from matplotlib import rc_context

        with rc_context(_PRINT):
            figure = draw(*arguments, **options)
            for ax in figure.axes:  # a tick takes its letters when it is made: by default, when it is first drawn
                ax.xaxis.get_major_ticks(1)
                ax.yaxis.get_major_ticks(1)
        return figure

    return drawn


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


def colour_limit(values: Floats) -> float:
    """Return the largest magnitude, or 1 where all values are 0, so that the colours still say where 0 is."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0


def stack_colour(stack: str) -> str:
    """Return the colour of a stack: blue for an encoder, orange for a decoder, grey for a name that is not known.

    >>> stack_colour("encoder") == BLUE, stack_colour("decoder") == ORANGE
    (True, True)
    """
    return STACK_COLOURS.get(stack, GREY)


def panel_title(ax: Axes, title: str, note: str = "") -> None:
    """Set the title of a panel (bold) and, below it, a note on how to read it (small)."""
    ax.set_title(title, loc="left", fontweight="bold", fontsize=TITLE, pad=15 if note and title else 5)
    if note:
        ax.annotate(
            note, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points", fontsize=SMALL, color=GREY
        )


def token_label(token: str) -> str:
    """Return a token as a short label, without the marks that vocabularies use for spaces and line breaks.

    >>> token_label("Ġthe"), token_label("▁"), token_label("averyverylongtoken")
    ('the', '␣', 'averyverylo…')
    """
    label = token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "⏎").strip() or "␣"
    label = label if len(label) <= 12 else label[:11] + "…"
    return label.replace("$", r"\$")  # matplotlib would read $…$ as a formula
