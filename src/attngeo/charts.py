"""`Figure`: what a figure shows, as values that matplotlib draws on paper and plotly on a page.

    Figure          panels in a grid, with one legend
      Panel         one coordinate system: a title, two axes, series that are drawn one over the other
        Line        a line through points, with or without symbols
        Points      symbols, of one colour or coloured by a number
        Band        the area between two curves
        Level       a line across the whole panel, with or without a band around it
        Heatmap     a matrix as coloured cells
        Text        words at a place

All text is plain: each back-end escapes it. `hover` is what a page says of the point that a reader points at; paper
has no use for it. {x}, {y} and {z} in it are the coordinates and the value, {name} and {detail} are those of the point.
A missing number is NaN or None. Colours, symbols and sizes of all figures stand first, and how a token is written as
a label. Nothing here knows a result; `attngeo.show` makes figures of results and draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

# The palette of Okabe and Ito, distinguishable with every kind of colour vision.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
YELLOW, SKY, BLACK, WHITE = "#E69F00", "#56B4E9", "#000000", "#ffffff"
COLOURS = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY)  # all can be seen on a light and on a dark page

# The same stack has the same colour in every figure.
STACK_COLOURS = dict(zip(("encoder", "decoder", "text", "vision", "audio", "cross"), COLOURS, strict=True))

GREY, LIGHT_GREY = "#6b6b6b", "#b0b0b0"  # of controls and reference lines, and of what stands in the background

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "hexagon", "star", "cross", "x")

SEQUENTIAL = "viridis"
# From negative (blue) over 0 to positive (red); both are distinguishable with every kind of colour vision.
DIVERGING = "RdBu_r"

COLUMN, PAGE = 3.3, 7.0  # inches: the width of a column, and of a page, of a paper


# ---- what a figure is made of

Numbers = Any  # a sequence or an array of numbers


@dataclass(frozen=True)
class Axis:
    """One side of a panel."""

    title: str = ""
    log: bool = False
    range: tuple[float, float] | None = None  # by default what the series need
    zero: bool = False  # the range begins at 0
    reverse: bool = False
    whole: bool = False  # ticks at whole numbers only
    ticks: Mapping[float, str] | None = None  # place → label; by default chosen by the back-end
    categories: tuple[str, ...] = ()  # labels of the places 0, 1, …; a page leaves out those that do not fit
    grid: bool = True
    flat: bool = False  # the axis has neither ticks nor labels


@dataclass(frozen=True)
class Bar:
    """The bar that says what the colours of a heat map or of points mean."""

    title: str = ""
    of: Literal["panel", "row", "column"] = "panel"  # on paper: which panels it stands beside
    below: bool = False  # on paper: below them
    ticks: Mapping[float, str] | None = None
    whole: bool = False  # ticks at whole numbers only
    open: bool = False  # values above the upper end are drawn in its colour


@dataclass(frozen=True)
class Line:
    """A line; a missing number interrupts it. Without coordinates it is only an entry of the legend."""

    x: Numbers
    y: Numbers
    colour: str = BLUE
    label: str = ""  # in the legend, which has one entry for all series of the same label
    width: float = 2.0  # pixels of a page
    dash: str = "-"  # or "--", ":", "-."
    symbol: str = ""  # at each point, one of `SYMBOLS`
    size: float = 7.0  # of the symbols, in pixels of a page
    opacity: float = 1.0
    hover: str = ""
    details: Sequence[str] = ()  # what there is to say of each point
    group: str = ""  # series that a page hides and shows together; by default those of one label


@dataclass(frozen=True)
class Points:
    """Symbols at points."""

    x: Numbers
    y: Numbers
    colour: str = BLUE
    label: str = ""
    symbol: str = "circle"  # one of `SYMBOLS`, or one with the ending "-open"
    size: float = 7.0
    opacity: float = 1.0
    edge: bool = False  # a white line around each symbol
    hover: str = ""
    names: Sequence[str] = ()
    details: Sequence[str] = ()
    group: str = ""
    shade: Numbers = None  # numbers that colour the points from dark to bright
    limits: tuple[float, float] = (0, 1)  # of the shades
    bar: Bar | None = None  # of the shades


@dataclass(frozen=True)
class Band:
    """The area between two curves."""

    x: Numbers
    low: Numbers
    high: Numbers
    colour: str = GREY
    label: str = ""
    opacity: float = 0.18
    group: str = ""


@dataclass(frozen=True)
class Level:
    """A line at a value from one side of the panel to the other, and the range ± `margin` around it as a band."""

    at: float
    margin: float = 0.0
    upright: bool = False  # a vertical line, at a value of x
    colour: str = GREY
    label: str = ""
    width: float = 1.5
    dash: str = "--"
    hover: str = ""
    group: str = ""


@dataclass(frozen=True)
class Heatmap:
    """A matrix as coloured cells, whose centres are at whole numbers; a missing number is no cell."""

    values: Numbers  # [rows, columns]
    limits: tuple[float, float]  # what has the first and the last colour
    colours: str = SEQUENTIAL  # a colour map, or a single colour
    label: str = ""  # in the list of a figure with a choice
    bar: Bar | None = None
    gap: bool = False  # between the cells, on a page
    hover: str = ""
    names: Sequence[Sequence[str | None]] = ()  # of the cells


@dataclass(frozen=True)
class Text:
    """Words at points, above them to the right."""

    x: Numbers
    y: Numbers
    words: Sequence[str]
    colour: str = ""  # by default that of all text
    small: bool = False


Series = Line | Points | Band | Level | Heatmap | Text


@dataclass(frozen=True)
class Panel:
    """One coordinate system of a figure."""

    title: str
    series: Sequence[Series]
    x: Axis = Axis()
    y: Axis = Axis()
    note: str = ""  # how to read the panel, below its title; only on paper, a page says it in the text above
    equal: bool = False  # a length is the same on both axes
    empty: bool = False  # nothing but text: no axes, and the text begins at the upper left corner


@dataclass(frozen=True)
class Figure:
    """Panels, row by row."""

    panels: Sequence[Panel]
    columns: int = 1  # panels in a row; a narrow page may place them below one another
    widths: Sequence[float] = ()  # of the columns, relative; a page keeps such columns side by side
    title: str = ""  # only on paper
    same: Literal["", "x", "y", "xy"] = ""  # the axes that all panels have in common
    # On paper: below or beside the figure, or one inside or under each panel. A page has it below.
    legend: Literal["below", "beside", "inside", "under"] = "below"
    size: tuple[float, float] = (PAGE, 3.3)  # inches, on paper
    height: int = 260  # pixels of each panel, on a page
    choice: bool = False  # only one heat map is shown; a page has a list to choose it from


# ---- colours and labels


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


def token_label(token: str) -> str:
    """Return a token as a short label, without the marks that vocabularies use for spaces and line breaks.

    >>> token_label("Ġthe"), token_label("▁"), token_label("averyverylongtoken")
    ('the', '␣', 'averyverylo…')
    """
    label = token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "⏎").strip() or "␣"
    return label if len(label) <= 12 else label[:11] + "…"
