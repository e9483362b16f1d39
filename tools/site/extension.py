"""What conf.py loads: the directives `room`, `options` and `record`, notebooks as pages, docstrings in our style."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

from tools.site.docstrings import to_rst
from tools.site.notebooks import NotebookParser
from tools.site.options import Options
from tools.site.records import RecordTable
from tools.site.rooms import Room

REPOSITORY = "https://github.com/attngeo/attngeo/blob/main"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("room", Room)
    app.add_directive("options", Options)
    app.add_directive("record", RecordTable)
    app.add_source_parser(NotebookParser)
    app.connect("autodoc-process-docstring", convert)
    app.connect("source-read", lead_outside)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def convert(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring in place; Sphinx calls this for each one it reads."""
    lines[:] = to_rst(lines)


def lead_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Let links to the tables of the experiments, which are no pages of the site, lead to the repository."""
    source[0] = re.sub(r"\]\((?:\.\./)+(experiments/[^)]+)\)", rf"]({REPOSITORY}/\1)", source[0])
