"""docs/coverage.md: what came of each model type."""

from __future__ import annotations

from collections import Counter
from typing import Any

_TITLES = {
    "right": "Right",
    "refused": "Refused",
    "unproven": "Unproven (scored only with `--unproven`)",
    "none": "No self-attention",
    "unbuilt": "Cannot be built",
}

TOLERANCE = 1e-4
_HEAD = """# Coverage: which model types are proved

Every model type that transformers {version} maps to a model ({types}): a tiny random model is built and saved, its
queries and keys are cut from the saved files by attngeo, and `x M_h xᵀ` is compared, head by head, with the query·key
products the live model itself computes (relative error at most 1e-4; exchanging two heads must be noticed). Biases are
zero, positions are zero so that rotary embedding is the identity, norms on queries, keys and latents are reduced to
their gain (marked qk-norm). A type whose products disagree is refused.

Made by `python -m tools.prove_all`, which also writes the facts the package ships.
"""


def page(everything: dict[str, dict[str, Any]], version: str) -> str:
    record = {kind: verdict for kind, verdict in everything.items() if not kind.startswith("gguf:")}
    counts = Counter(verdict["status"] for verdict in record.values())
    ran = counts["right"] + counts["refused"] + counts["unproven"]
    worst = max((v.get("worst", 0.0) for v in record.values() if v["status"] == "right"), default=0.0)
    wrong = sum(v["status"] == "right" and not v.get("worst", 1.0) <= TOLERANCE for v in record.values())
    table = [counts["right"], counts["refused"], counts["unproven"], counts["none"], counts["unbuilt"], wrong]
    lines = [
        _HEAD.format(version=version, types=len(record)),
        "| right | refused | unproven | no self-attention | cannot be built | right but disagreeing |",
        "|---|---|---|---|---|---|",
        f"| {' | '.join(map(str, table))} |",
        "",
        f"Of the {ran} with self-attention that could be built, {100 * counts['right'] / max(ran, 1):.1f}% are right;",
        f"the largest relative error among them is {worst:.1e}. A part of a right model that no live product",
        "confirmed is left out of its scores and named here.",
    ]
    for status, title in _TITLES.items():
        members = sorted(kind for kind, verdict in record.items() if verdict["status"] == status)
        lines += ["", f"## {title} ({len(members)})", ""]
        if status == "right":
            lines += ["| type | stacks (layers of the tiny model) | error | notes |", "|---|---|---|---|"]
            lines += [_row(kind, record[kind]) for kind in members]
        elif status == "none":
            lines.append(", ".join(members))
        else:
            lines += ["| type | reason |", "|---|---|"]
            lines += [f"| {kind} | {_clean(record[kind].get('reason', ''))} |" for kind in members]
    return "\n".join(lines + _gguf({kind: v for kind, v in everything.items() if kind not in record})) + "\n"


def _gguf(record: dict[str, dict[str, Any]]) -> list[str]:
    right = sorted(kind for kind, verdict in record.items() if verdict["status"] == "right")
    return [
        "",
        f"## GGUF architectures ({len(right)} right)",
        "",
        "A tiny random model is converted as llama.cpp does and loaded live by transformers from the very file attngeo",
        "reads; where transformers cannot load the architecture, the live model is the one that was converted.",
        "",
        "| type | stacks (layers of the tiny model) | error | notes |",
        "|---|---|---|---|",
        *(_row(kind, record[kind]) for kind in right),
        *(
            f"| {kind} | {verdict['status']} | | {_clean(verdict.get('reason', ''))} |"
            for kind, verdict in sorted(record.items())
            if kind not in right
        ),
    ]


def _row(kind: str, verdict: dict[str, Any]) -> str:
    stacks = ", ".join(f"{name} {count}" for name, count in verdict.get("stacks", {}).items())
    notes = ["qk-norm"] if verdict.get("qk_norm") else []
    notes += ["norm folded"] if verdict.get("norms") else []
    notes += [f"left out: {', '.join(verdict['skip'])}"] if verdict.get("skip") else []
    notes += [verdict["note"]] if verdict.get("note") else []
    return f"| {kind} | {stacks} | {verdict.get('worst', 0.0):.0e} | {_clean('; '.join(notes))} |"


def _clean(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("*", "\\*").split())
