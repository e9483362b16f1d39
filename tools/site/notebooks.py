"""Notebooks as pages: the cells and their saved outputs as Markdown, with pictures inside the page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser


class NotebookParser(MystParser):
    """Reads a notebook file; a cell without its outputs is shown without them, nothing is run."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(to_markdown(json.loads(inputstring)), document)


def to_markdown(notebook: dict[str, Any]) -> str:
    """Return the cells of a notebook as Markdown.

    >>> cell = {"cell_type": "code", "source": ["1 + 1"], "outputs": [{"data": {"text/plain": ["2"]}}]}
    >>> print(to_markdown({"cells": [cell]}))
    ```python
    1 + 1
    ```
    <BLANKLINE>
    ```text
    2
    ```
    """
    return "\n\n".join(part for cell in notebook["cells"] for part in parts(cell))


def parts(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            alt = html.escape("".join(data.get("text/plain", "figure")), quote=True)
            picture = "".join(data["image/png"]).replace("\n", "")
            yield f'<img class="output" alt="{alt}" src="data:image/png;base64,{picture}">'
        elif "text/html" in data:
            table = "".join(data["text/html"]).replace("\n\n", "\n")  # an empty line would end the HTML
            yield f'<div class="output">\n{table}\n</div>'
        elif "".join(data.get("text/plain", "")).strip():
            yield f"```text\n{''.join(data['text/plain']).rstrip()}\n```"
