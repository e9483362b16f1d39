"""The tables of `docs/pruning.md`, made from the logs: `python -m experiments.pruning page`.

A table stands in the page between two comments, `<!-- table: NAME -->` and `<!-- end -->`. What is between them is
replaced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from attngeo.errors import InputError
from experiments.pruning.records import Record
from experiments.pruning.table import tables


def with_tables(page: str, records: Sequence[Record]) -> str:
    """Return the page with its tables made anew from the records."""
    made = tables(records)

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in made:
            raise InputError(f"table {name!r}: no records, expected one of {', '.join(made)}")
        return f"<!-- table: {name} -->\n{made[name]}\n<!-- end -->"

    return re.sub(r"<!-- table: (?P<name>[^>]*?) -->\n.*?<!-- end -->", table, page, flags=re.DOTALL)
