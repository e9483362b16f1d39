"""The section of docs/coverage.md on the model classes of diffusers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORD = Path(__file__).resolve().parents[3] / "docs/coverage_diffusers.json"
_HEAD = """For each class we build and save one or more tiny models with random weights (several where the meaning of a
config key depends on the kind of block). attngeo cuts the queries and keys of every head from the saved files, and
`x M_h yᵀ` is compared with the products of the live model, where x and y are the inputs of the layer's own query and
key projections. In joint attention a form is compared with its block of the product. Biases, positions and QK-norms are
treated as above; casts to bfloat16 before the product are left out.

A layer counts as self-attention if the tokens of its queries are among those of its keys, and as cross-attention
otherwise; a layer that attngeo labels differently is not right. The column "rotation" is "none" if the products also
agree when positions keep their values, so that nothing rotates. Elsewhere rotation is not proved, and the columns for
rotary embedding are empty.

The section is written by `python -m tools.prove_diffusers`, which also writes the facts that the package ships."""


def diffusers_section() -> list[str]:
    """Return the lines of the section, made from docs/coverage_diffusers.json."""
    record = json.loads(RECORD.read_text("utf-8"))  # "version", "classes" (class → verdict), "others": not examined
    classes: dict[str, dict[str, Any]] = record["classes"]
    others = len(record["others"])
    refused = sum(verdict["status"] == "refused" for verdict in classes.values())
    right = [name for name, verdict in sorted(classes.items()) if verdict["status"] == "right"]
    worst = max((classes[name]["worst"] for name in right), default=0.0)
    lines = [
        "",
        f"## diffusers {record['version']} ({len(right)} classes right)",
        "",
        _HEAD,
        "",
        f"{len(right)} classes are right, {refused} are refused, {others} were not examined. The largest",
        f"relative error of a right class is {worst:.1e}.",
        "",
        "| class | stacks (layers of the first tiny model) | error | rotation | notes |",
        "|---|---|---|---|---|",
        *(_row(name, classes[name]) for name in right),
        "",
        "| class | status | reason |",
        "|---|---|---|",
        *(
            f"| {name} | {v['status']} | {cell(v['reason'])} |"
            for name, v in sorted(classes.items())
            if name not in right
        ),
        "",
        f"Not examined, and scored only with `--unproven`: {', '.join(sorted(record['others']))}.",
    ]
    return lines


def _row(name: str, verdict: dict[str, Any]) -> str:
    """Return the table row of a class that is right."""
    stacks = ", ".join(f"{stack} {count}" for stack, count in verdict["stacks"].items())
    notes = ["qk-norm"] if verdict["qk_norm"] else [verdict["note"]] if verdict["note"] else []
    notes += [f"left out: {', '.join(verdict['skip'])}"] if verdict["skip"] else []
    known = {rule["site"] for rule in verdict["rotary"]}
    rotation = "none" if known >= set(verdict["sites"]) else "not proved" if not known else "none in some layers"
    return f"| {name} | {stacks} | {verdict['worst']:.0e} | {rotation} | {cell('; '.join(notes))} |"


def cell(text: str) -> str:
    """Return `text` on one line, with the characters escaped that Markdown tables use."""
    return " ".join(text.replace("|", "/").replace("*", "\\*").split())
