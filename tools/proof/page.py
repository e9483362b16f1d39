"""The tables of docs/coverage.md, which the site shows, and the counts that the committed page holds."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from experiments.page_tables import pipe_table, replace_tables
from tools.proof.diffusers.page import cell, diffusers_tables

_STATUSES = ("right", "refused", "unproven", "none", "unbuilt")
_HEAD_OF_RIGHT = ("type", "stacks (layers of the tiny model)", "error", "rotary", "notes")
VERSION = re.compile(r"(?<=transformers )\d+\.\d+\.\d+")


def coverage_tables(everything: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the tables of docs/coverage.md by name, in Markdown; the site shows them.

    everything: the content of docs/coverage.json, model type → verdict
    """
    gguf = {kind: verdict for kind, verdict in everything.items() if kind.startswith("gguf:")}
    made = {"gguf": _gguf_table(gguf), **diffusers_tables()}
    for status in _STATUSES:
        members = {kind: verdict for kind, verdict in _types(everything).items() if verdict["status"] == status}
        if status == "right":
            made[status] = pipe_table(_HEAD_OF_RIGHT, [_row(kind, verdict) for kind, verdict in members.items()])
        elif status == "none":
            made[status] = ", ".join(members)
        else:
            rows = [(kind, cell(verdict.get("reason", ""))) for kind, verdict in members.items()]
            made[status] = pipe_table(("type", "reason"), rows)
    return made


def with_counts(page: str, everything: dict[str, dict[str, Any]], version: str) -> str:
    """Return docs/coverage.md with its counts made anew from the record, and with the version of transformers."""
    record = _types(everything)
    counts = Counter(verdict["status"] for verdict in record.values())
    right = [verdict for verdict in record.values() if verdict["status"] == "right"]
    rotates = Counter(rotary_state(verdict) for verdict in right)
    made = {
        "counts": pipe_table(
            ("types", "right", "refused", "unproven", "no self-attention", "cannot be built"),
            [(str(len(record)), *(str(counts[status]) for status in _STATUSES))],
        ),
        "rotary": pipe_table(
            (
                "rotates, proved",
                "does not rotate",
                "rotary not proved",
                "largest relative error",
                "at non-zero positions",
            ),
            [
                (
                    *(str(rotates[state]) for state in ("yes", "no", "not proved")),
                    *(f"{max(verdict.get(name, 0.0) for verdict in right):.1e}" for name in ("worst", "rotary_worst")),
                )
            ],
        ),
    }
    return replace_tables(VERSION.sub(version, page), made, "record")


def _types(everything: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the verdicts on the types of transformers, sorted by name."""
    return {kind: verdict for kind, verdict in sorted(everything.items()) if not kind.startswith("gguf:")}


def _gguf_table(record: dict[str, dict[str, Any]]) -> str:
    right = sorted(kind for kind, verdict in record.items() if verdict["status"] == "right")
    rows = [_row(kind, record[kind]) for kind in right]
    rows += [
        (kind, verdict["status"], "", "", cell(verdict.get("reason", "")))
        for kind, verdict in sorted(record.items())
        if kind not in right
    ]
    return pipe_table(_HEAD_OF_RIGHT, rows)


def _row(kind: str, verdict: dict[str, Any]) -> tuple[str, ...]:
    """Return the table row of a type that is right."""
    stacks = ", ".join(f"{name} {count}" for name, count in verdict.get("stacks", {}).items())
    notes = ["qk-norm"] if verdict.get("qk_norm") else []
    notes += ["norm folded"] if verdict.get("norms") else []
    notes += ["prunable"] if verdict.get("prune") else []
    notes += [f"left out: {', '.join(verdict['skip'])}"] if verdict.get("skip") else []
    notes += [f"unknown layout: {', '.join(verdict['unknown'])}"] if verdict.get("unknown") else []
    notes += [verdict["note"]] if verdict.get("note") else []
    return (kind, stacks, f"{verdict.get('worst', 0.0):.0e}", cell(rotary_text(verdict)), cell("; ".join(notes)))


def rotary_state(verdict: dict[str, Any]) -> str:
    """Return whether the heads of a type rotate: "yes", "no", or "not proved" for at least some of its layers."""
    if verdict.get("rotary_unproved") or not verdict.get("rotary"):
        return "not proved"
    return "yes" if any(rule["pairs"] != "none" for rule in verdict["rotary"]) else "no"


def rotary_text(verdict: dict[str, Any]) -> str:
    """Return the cell of the column "rotary"."""
    rules = [rule for rule in verdict.get("rotary", ()) if not rule.get("when")]
    texts = []
    for rule in rules:
        if rule["pairs"] != "none":
            some = any(other["site"] == rule["site"] and other["pairs"] == "none" for other in rules)
            words = [rule["pairs"], "two axes" if "axes" in rule else "", "partial" if rule["size"] != "head" else ""]
            texts.append(", ".join(word for word in (*words, "some layers" if some else "") if word))
    missing = list(verdict.get("rotary_unproved", ()))
    if missing or not rules:
        where = f": {', '.join(missing)}" if rules else ""
        texts.append(f"not proved{where}")
    return "; ".join(dict.fromkeys(texts)) or "no"
