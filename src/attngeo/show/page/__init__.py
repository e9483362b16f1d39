"""What a page is made of: sections, each with figures that the browser draws and tables it can save.

attention   the section with the attention of single heads, and the same as a widget of a notebook
document    sections as an HTML document, with the scripts and the style sheets of the folder `assets`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attngeo.charts import Figure
from attngeo.io.names import short_name
from attngeo.show.plotly import described, rounded


@dataclass(frozen=True)
class PageFigure:
    """One figure of a page, its name for a screen reader, and its data."""

    id: str  # unique in the page, letters, digits and hyphens
    label: str  # one sentence, read out by a screen reader
    chart: Figure
    rows: Sequence[Mapping[str, Any]]  # column name → value

    @cached_property
    def plotly(self) -> dict[str, Any]:
        """The description from which plotly draws the figure."""
        return described(self.chart)

    @property
    def table(self) -> dict[str, list[Any]]:
        """The rows as columns, saved as CSV; a float is rounded, a missing value is None."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        return {name: rounded([row.get(name) for row in self.rows]) for name in names}


@dataclass(frozen=True)
class Section:
    """A titled part of a page with two or three sentences that say how to read it."""

    id: str
    title: str
    reading: str
    figures: tuple[PageFigure, ...] = ()
    notes: tuple[str, ...] = ()  # single lines under the figures, e.g. heads that fall short
    attention: Mapping[str, Any] | None = None  # of single heads, as `attention_data` returns it
    view: int = 0  # which of the sections with attention shows the heads that are picked in the figures


def stack_name(model: str, stack: str) -> str:
    """Return model and stack as the title of a panel; a name that ends in the stack's does not repeat it."""
    return short_name(model) + ("" if model.rstrip("/").endswith(stack) else f", {stack}")
