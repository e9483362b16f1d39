"""The pages on coverage and capture hold the counts of their records; the package ships the same verdicts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from attngeo.weights.layout.facts import family
from tools.proof import capture_page
from tools.proof.page import coverage_tables, with_counts
from tools.proof.shipped import SHIPPED, shipped_record

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
RECORD = json.loads((DOCS / "coverage.json").read_text("utf-8"))
CAPTURED = json.loads((DOCS / "capture.json").read_text("utf-8"))


def pinned(name: str) -> str:
    found = re.search(rf"^{name}==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
    assert found is not None
    return found[1]


def test_the_pages_hold_the_counts_of_the_records_and_the_pinned_versions() -> None:
    coverage, capture = ((DOCS / f"{name}.md").read_text("utf-8") for name in ("coverage", "capture"))
    assert with_counts(coverage, RECORD, pinned("transformers")) == coverage
    assert capture_page.with_counts(capture, CAPTURED, pinned("transformers")) == capture
    classes = json.loads((DOCS / "coverage_diffusers.json").read_text("utf-8"))
    assert f"diffusers {classes['version']}" in coverage and classes["version"] == pinned("diffusers")


def test_every_type_and_class_is_in_a_table_that_its_page_shows() -> None:
    shown: dict[str, str] = {}
    made: dict[str, dict[str, str]] = {
        "coverage": coverage_tables(RECORD),
        "capture": capture_page.capture_tables(CAPTURED),
    }
    for name, tables in made.items():
        page = (DOCS / f"{name}.md").read_text("utf-8")
        asked = re.findall(rf"^```\{{record\}} {name} (.*)$", page, re.M)
        assert set(asked) == set(tables) - {"WRONG"}
        shown[name] = "\n".join(tables[one] for one in asked)
    assert all(re.search(rf"(^\| |, |^){re.escape(kind)}( \||,|$)", shown["coverage"], re.M) for kind in RECORD)
    assert all(f"| {kind} | " in shown["capture"] for kind in CAPTURED)


def test_what_is_right_was_compared_and_agreed() -> None:
    right: list[Any] = [verdict for verdict in RECORD.values() if verdict["status"] == "right"]
    assert all(verdict["worst"] <= 1e-4 for verdict in right)


def test_the_package_ships_the_verdicts_of_the_page() -> None:
    assert len(RECORD) > 600
    for model_type, verdict in RECORD.items():
        facts = family(model_type)
        assert (facts.status, list(facts.skip), list(facts.norms)) == (
            verdict["status"],
            verdict.get("skip", []),
            verdict.get("norms", []),
        )


def test_the_command_coverage_prints_what_the_committed_records_say() -> None:
    diffusers = json.loads((DOCS / "coverage_diffusers.json").read_text("utf-8"))
    made = shipped_record(RECORD, diffusers, CAPTURED)
    assert json.loads(SHIPPED.read_text("utf-8")) == {kind: list(row) for kind, row in made.items()}
    assert SHIPPED.stat().st_size < 60_000
    assert set(made) >= {*RECORD, *CAPTURED, *(f"diffusers:{name}" for name in diffusers["classes"])}
