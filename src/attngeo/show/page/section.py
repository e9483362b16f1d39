"""What a page is made of: sections, each with figures that the browser draws and tables it can save."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["PageFigure", "Section"]


@dataclass(frozen=True)
class PageFigure:
    """One figure of a page: a plotly description, its name for a screen reader, and its data as a table."""

    id: str  # unique in the page, letters, digits and hyphens
    label: str  # one sentence, read out by a screen reader
    plotly: Mapping[str, Any]  # {"data": [...], "layout": {...}}, plain lists and numbers
    table: Mapping[str, Sequence[Any]]  # column name -> values, saved as CSV


@dataclass(frozen=True)
class Section:
    """A titled part of a page with two or three sentences that say how to read it."""

    id: str
    title: str
    reading: str
    figures: tuple[PageFigure, ...] = ()
    notes: tuple[str, ...] = ()  # single lines under the figures, e.g. heads that fall short
