"""The directive `record`: a table of the records that the proofs write, as Markdown."""

from __future__ import annotations

import json
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from tools.proof.capture_page import capture_tables
from tools.proof.page import coverage_tables

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLES = {"coverage": coverage_tables, "capture": capture_tables}


class RecordTable(SphinxDirective):
    """`{record} coverage right`: the table "right" of docs/coverage.json."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        name, table = self.arguments[0].split(maxsplit=1)
        path = DOCS / f"{name}.json"
        self.env.note_dependency(str(path))
        lines = TABLES[name](json.loads(path.read_text("utf-8")))[table].splitlines()
        node = nodes.container()
        self.state.nested_parse(StringList(lines, str(path)), self.content_offset, node)
        return node.children
