"""Tables of a page that are made from logs.

A table stands in the page between two comments, `<!-- table: NAME -->` and `<!-- end -->`. What is between them is
replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from attngeo.errors import InputError


def replace_tables(page: str, made: Mapping[str, str], logs: str) -> str:
    """Return the page with these tables in their places.

    made: name → table, in Markdown
    logs: what tables are made from, for the error that names one that is missing
    """

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in made:
            raise InputError(f"table {name!r}: no {logs}, expected one of {', '.join(made)}")
        return f"<!-- table: {name} -->\n{made[name]}\n<!-- end -->"

    return re.sub(r"<!-- table: (?P<name>[^>]*?) -->\n.*?<!-- end -->", table, page, flags=re.DOTALL)


def pipe_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(pipe_table(["model", "loss"], [["encoder", "2.4"]]))
    | model | loss |
    | --- | --- |
    | encoder | 2.4 |
    """
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])
