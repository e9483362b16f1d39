"""What `attngeo coverage` says of each type beside the facts about it: stacks, rotation and capture.

`python -m tools.proof.shipped` makes it anew from the records in docs/; the proofs do so when they have written those.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attngeo.weights.sources.checkpoint import PREFIX
from tools.proof.diffusers.page import diffusers_rotation
from tools.proof.page import rotary_text
from tools.proof.verdict import write_lines

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "src/attngeo/weights/data/coverage.json"
_LONGEST = 80  # characters of the reason why a type cannot be captured; docs/capture.json has all of it
_SHORT = {
    "attention does not go through transformers' AttentionInterface, nothing can be captured": "no AttentionInterface"
}


Row = tuple[str | None, str | None, str | None]  # stacks, rotation, capture; None: not known


def shipped_record(
    types: dict[str, dict[str, Any]], diffusers: dict[str, Any], captures: dict[str, dict[str, str]]
) -> dict[str, Row]:
    """Return the stacks of each type, how its heads rotate and what can be captured.

    types, diffusers, captures: the content of docs/coverage.json, coverage_diffusers.json and capture.json
    """
    record: dict[str, Row] = {}
    for kind, verdict in types.items():
        rotation = rotary_text(verdict)
        record[kind] = _row(verdict, "none" if rotation == "no" else rotation, captures.get(kind))
    for name, verdict in diffusers["classes"].items():
        record[PREFIX + name] = _row(verdict, diffusers_rotation(verdict), None)
    record |= {PREFIX + name: (None, None, None) for name in diffusers["others"]}  # not examined
    return dict(sorted(record.items()))


def _row(verdict: dict[str, Any], rotation: str, capture: dict[str, str] | None) -> Row:
    stacks = ", ".join(verdict.get("stacks", ()))
    return (
        stacks or None,
        rotation if verdict["status"] == "right" else None,
        _capture_text(**capture) if capture else None,
    )


def _capture_text(status: str, text: str) -> str:
    """Return the outcome of a capture in short: its status, and which stacks are captured or why none is.

    >>> _capture_text("captured", "text 12 × 12 × 64; vision: this input does not reach its stack vision")
    'captured: text'
    """
    if status == "captured":
        parts = text.split("; ")
        stacks = [part.partition(" ")[0] for part in parts if ": " not in part and " × " in part]
        return status if len(stacks) == len(parts) else f"{status}: {', '.join(stacks)}"
    if status == "refused":
        text = _SHORT.get(text, text)
        return f"{status}: {text if len(text) <= _LONGEST else text[:_LONGEST] + '…'}"
    return status


def write_shipped() -> None:
    """Write the record that ships with the package from those in docs/."""
    docs = (ROOT / "docs" / f"{name}.json" for name in ("coverage", "coverage_diffusers", "capture"))
    record = shipped_record(*(json.loads(path.read_text("utf-8")) for path in docs))
    write_lines(SHIPPED, {kind: json.dumps(row, ensure_ascii=False) for kind, row in record.items()})


if __name__ == "__main__":
    write_shipped()
