"""Tables with given columns, from rows or from tables that lack some of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl


def table_of(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> pl.DataFrame:
    """Return rows as a frame; columns: name → polars type. A missing key becomes null."""
    import polars as pl

    rows = list(rows)
    types = {name: getattr(pl, kind) for name, kind in columns.items()}
    return pl.DataFrame({name: [row.get(name) for row in rows] for name in columns}, schema=types)


def with_all_columns(frame: pl.DataFrame, columns: Mapping[str, str]) -> pl.DataFrame:
    """Return a frame with these columns in their order; those that it does not have are null."""
    import polars as pl

    return frame.select(
        pl.col(name) if name in frame.columns else pl.lit(None, getattr(pl, kind)).alias(name)
        for name, kind in columns.items()
    )
