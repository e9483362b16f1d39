"""The tables of docs/capture.md, which the site shows, and the counts that the committed page holds."""

from __future__ import annotations

from collections import Counter

from experiments.page_tables import pipe_table, replace_tables
from tools.proof.diffusers.page import cell
from tools.proof.page import VERSION

STATUSES = ("WRONG", "captured", "refused", "not run")
Outcomes = dict[str, dict[str, str]]  # model type → "status", one of STATUSES, and "text"


def capture_tables(outcomes: Outcomes) -> dict[str, str]:
    """Return a table for each status, in Markdown. outcomes: the content of docs/capture.json."""
    return {
        status: pipe_table(
            ("type", "outcome"),
            [(kind, cell(one["text"])) for kind, one in sorted(outcomes.items()) if one["status"] == status],
        )
        for status in STATUSES
    }


def with_counts(page: str, outcomes: Outcomes, version: str) -> str:
    """Return docs/capture.md with its counts made anew from the record, and with the version of transformers."""
    counts = Counter(one["status"] for one in outcomes.values())
    found = [status for status in STATUSES if counts[status] or status != "WRONG"]
    row = (str(len(outcomes)), *(str(counts[status]) for status in found))
    return replace_tables(VERSION.sub(version, page), {"counts": pipe_table(("types", *found), [row])}, "record")
