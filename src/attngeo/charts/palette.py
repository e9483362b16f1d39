"""Colours, symbols and sizes of all figures, and how a token is written as a label."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np

from attngeo.arrays import Floats

# The palette of Okabe and Ito, distinguishable with every kind of colour vision.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
YELLOW, SKY, BLACK, WHITE = "#E69F00", "#56B4E9", "#000000", "#ffffff"
COLOURS = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY)  # all can be seen on a light and on a dark page

# The same stack has the same colour in every figure.
STACK_COLOURS = {
    "encoder": BLUE,
    "decoder": ORANGE,
    "text": GREEN,
    "vision": PINK,
    "audio": YELLOW,
    "cross": SKY,
}

GREY, LIGHT_GREY = "#6b6b6b", "#b0b0b0"  # of controls and reference lines, and of what stands in the background

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "hexagon", "star", "cross", "x")

SEQUENTIAL = "viridis"
# From negative (blue) over 0 to positive (red); both are distinguishable with every kind of colour vision.
DIVERGING = "RdBu_r"

COLUMN, PAGE = 3.3, 7.0  # inches: the width of a column, and of a page, of a paper


def stack_colour(stack: str) -> str:
    """Return the colour of a stack: blue for an encoder, orange for a decoder, grey for a name that is not known.

    >>> stack_colour("encoder") == BLUE, stack_colour("decoder") == ORANGE
    (True, True)
    """
    return STACK_COLOURS.get(stack, GREY)


def distinct_colours(stacks: Sequence[str]) -> list[str]:
    """Return a colour per series: the first of each stack has that of its stack, the others those that are left.

    >>> distinct_colours(["encoder", "decoder", "encoder"]) == [BLUE, ORANGE, GREEN]
    True
    """
    own = [STACK_COLOURS.get(stack) if stack not in stacks[:at] else None for at, stack in enumerate(stacks)]
    left = cycle([colour for colour in COLOURS if colour not in own] or COLOURS)
    return [colour or next(left) for colour in own]


def shade(share: float) -> str:
    """Return the sequential colour of a share between 0, dark, and 1, bright."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps[SEQUENTIAL](share))


def colour_limit(values: Floats) -> float:
    """Return the largest magnitude, or 1 where all values are 0, so that the colours still say where 0 is."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0


def token_label(token: str) -> str:
    """Return a token as a short label, without the marks that vocabularies use for spaces and line breaks.

    >>> token_label("Ġthe"), token_label("▁"), token_label("averyverylongtoken")
    ('the', '␣', 'averyverylo…')
    """
    label = token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "⏎").strip() or "␣"
    return label if len(label) <= 12 else label[:11] + "…"
