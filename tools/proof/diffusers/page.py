"""The tables of docs/coverage.md about the model classes of diffusers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.page_tables import pipe_table

RECORD = Path(__file__).resolve().parents[3] / "docs/coverage_diffusers.json"


def diffusers_tables() -> dict[str, str]:
    """Return the tables of the classes of diffusers by name, made from docs/coverage_diffusers.json."""
    record = json.loads(RECORD.read_text("utf-8"))  # "version", "classes" (class → verdict), "others": not examined
    classes: dict[str, dict[str, Any]] = dict(sorted(record["classes"].items()))
    right = {name: verdict for name, verdict in classes.items() if verdict["status"] == "right"}
    rest = {name: verdict for name, verdict in classes.items() if name not in right}
    return {
        "diffusers": pipe_table(
            ("class", "stacks (layers of the first tiny model)", "error", "rotation", "notes"),
            [_row(name, verdict) for name, verdict in right.items()],
        ),
        "diffusers rest": pipe_table(
            ("class", "status", "reason"),
            [(name, verdict["status"], cell(verdict["reason"])) for name, verdict in rest.items()],
        ),
        "diffusers others": ", ".join(sorted(record["others"])),
    }


def _row(name: str, verdict: dict[str, Any]) -> tuple[str, ...]:
    """Return the table row of a class that is right."""
    stacks = ", ".join(f"{stack} {count}" for stack, count in verdict["stacks"].items())
    notes = ["qk-norm"] if verdict["qk_norm"] else [verdict["note"]] if verdict["note"] else []
    notes += [f"left out: {', '.join(verdict['skip'])}"] if verdict["skip"] else []
    return (name, stacks, f"{verdict['worst']:.0e}", diffusers_rotation(verdict), cell("; ".join(notes)))


def diffusers_rotation(verdict: dict[str, Any]) -> str:
    """Return whether the heads of a class rotate, as far as it was proved."""
    known = {rule["site"] for rule in verdict["rotary"]}
    return "none" if known >= set(verdict["sites"]) else "not proved" if not known else "none in some layers"


def cell(text: str) -> str:
    """Return `text` on one line, with the characters escaped that Markdown tables use."""
    return " ".join(text.replace("|", "/").replace("*", "\\*").split())
