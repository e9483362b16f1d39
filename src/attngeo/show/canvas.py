"""What all pictures of this room share: paper, colours, titles, letters. No global state of matplotlib."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from attngeo.io.atomic import atomic_file, write_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with every kind of colour vision; controls in greys behind them.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
GREY, LIGHT = "#6b6b6b", "#b0b0b0"


def paper(width: float, height: float) -> Figure:
    """An empty figure."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def save_figure(figure: Figure, target: Path | IO[bytes]) -> None:
    """Write a figure to a file, atomically and in the format of its suffix, or as PNG to an open file.

    Letters that the font lacks are drawn as boxes, without matplotlib's warning.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        if isinstance(target, Path):
            with write_errors(target), atomic_file(target) as file:
                figure.savefig(file, format=target.suffix[1:].lower() or "png")
        else:
            figure.savefig(target, format="png")


def plain(ax: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """A light grid, no box."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis=grid, color="#e6e6e6", linewidth=0.8)
    ax.set_axisbelow(True)


def title(ax: Axes, words: str, note: str = "") -> None:
    """What is shown on the left, how to read it on the right."""
    ax.set_title(words, loc="left", fontweight="bold", fontsize=10)
    if note:
        ax.set_title(note, loc="right", fontsize=8, color=GREY)


def readable(label: str) -> str:
    """A token as it reads: the marks byte-level and sentence-piece vocabularies put for spaces taken out."""
    label = label.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "⏎").strip() or "␣"
    label = label if len(label) <= 12 else label[:11] + "…"
    return label.replace("$", r"\$")  # or it would be read as a formula
