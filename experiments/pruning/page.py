"""The tables of `docs/pruning.md` and of RESULTS.md, made from the logs: `python -m experiments.pruning page`."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.page_tables import replace_tables
from experiments.pruning.records import Record
from experiments.pruning.table import tables


def with_tables(page: str, records: Sequence[Record]) -> str:
    """Return the page with its tables made anew from the records."""
    return replace_tables(page, tables(records), "records")
