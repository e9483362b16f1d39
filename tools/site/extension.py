"""What conf.py loads: the directives `room` and `options`, notebooks as pages, and docstrings in our own style."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from tools.site.docstrings import to_rst
from tools.site.notebooks import NotebookParser
from tools.site.options import Options
from tools.site.rooms import Room


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("room", Room)
    app.add_directive("options", Options)
    app.add_source_parser(NotebookParser)
    app.connect("autodoc-process-docstring", convert)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def convert(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring in place; Sphinx calls this for each one it reads."""
    lines[:] = to_rst(lines)
