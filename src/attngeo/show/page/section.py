"""What a page is made of: sections, each with figures that the browser draws and tables it can save."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attngeo.charts import Figure
from attngeo.io.names import short_name
from attngeo.show.plotly import described, rounded


@dataclass(frozen=True)
class PageFigure:
    """One figure of a page, its name for a screen reader, and its data as a table."""

    id: str  # unique in the page, letters, digits and hyphens
    label: str  # one sentence, read out by a screen reader
    chart: Figure
    table: Mapping[str, Sequence[Any]]  # column name -> values, saved as CSV

    @cached_property
    def plotly(self) -> dict[str, Any]:
        """The description from which plotly draws the figure."""
        return described(self.chart)


@dataclass(frozen=True)
class Section:
    """A titled part of a page with two or three sentences that say how to read it."""

    id: str
    title: str
    reading: str
    figures: tuple[PageFigure, ...] = ()
    notes: tuple[str, ...] = ()  # single lines under the figures, e.g. heads that fall short


def columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns, for the table of a figure; a float is rounded, a missing value is None."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: rounded([row.get(name) for row in rows]) for name in names}


def stack_name(model: str, stack: str) -> str:
    """Return model and stack as the title of a panel; a name that ends in the stack's does not repeat it."""
    return short_name(model) + ("" if model.rstrip("/").endswith(stack) else f", {stack}")
