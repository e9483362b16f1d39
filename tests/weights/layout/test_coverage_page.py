"""docs/coverage.md is what the generator writes for docs/coverage.json, and the package ships the same verdicts."""

from __future__ import annotations

import json
import re
from pathlib import Path

from attngeo.weights.layout.facts import family
from tools.proof.page import coverage_page

DOCS = Path(__file__).resolve().parents[3] / "docs"
RECORD = json.loads((DOCS / "coverage.json").read_text("utf-8"))


def test_the_page_is_what_the_generator_writes() -> None:
    page = (DOCS / "coverage.md").read_text("utf-8")
    version = re.search(r"transformers (\S+) maps", page)
    assert version is not None
    assert coverage_page(RECORD, version[1]) == page


def test_the_package_ships_the_verdicts_of_the_page() -> None:
    assert len(RECORD) > 600
    for model_type, verdict in RECORD.items():
        facts = family(model_type)
        assert (facts.status, list(facts.skip), list(facts.norms)) == (
            verdict["status"],
            verdict.get("skip", []),
            verdict.get("norms", []),
        )
