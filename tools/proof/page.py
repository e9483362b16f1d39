"""The text of docs/coverage.md: the verdict on each model type."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tools.proof.diffusers.page import cell, diffusers_section

TOLERANCE = 1e-4  # as in `agreement`, which needs torch
_TITLES = {
    "right": "Right",
    "refused": "Refused",
    "unproven": "Unproven (scored only with `--unproven`)",
    "none": "No self-attention",
    "unbuilt": "Cannot be built",
}
_HEAD = """# Coverage: which model types can be scored

This page lists every model type that transformers {version} maps to a model ({types}) and says whether `attngeo score`
reads its queries and keys correctly. The type of a model is the `model_type` in its `config.json`. For each type we
build and save a tiny model with random weights, and attngeo cuts the queries and keys of every head from the saved
files. We then compare `x M_h xᵀ`, where M_h is the form of head h and x the input of the layer, with the products of
queries and keys that the live model computes.

* *Right*: the relative error of every head is at most 1e-4, and exchanging two heads is noticed.
* *Refused*: the products disagree, or the tensors contradict the config. attngeo does not score the type.
* *Unproven*: no product of the live model could be compared. attngeo scores the type only with `--unproven`.

During this comparison all biases are zero, all positions are zero (so that rotary embedding is the identity), and norms
on queries, keys and latents (noted as qk-norm) are reduced to their linear part: the gain, after subtracting the mean
where they are LayerNorms. The note "norm folded" says that the norm before the attention was identified, so that
`attngeo score` also gives the scores with this norm folded in. The note "prunable" says that `attngeo prune` can remove
heads: a model without some heads, and one loaded from its folder, gave what the full model gives whose heads are gated
to zero (`python -m tools.prove_prune`).

The column *rotary* comes from a second comparison, with the model's own positions, sines and cosines. For offsets Δ
from −300 to 300 (or as far as the model's input goes), we compare `x_i M_Δ x_jᵀ` with the products of the live model.

* *halves*, *neighbours*: the pairs of dimensions that rotate together are i and i + n, or 2i and 2i + 1. The relative
  error of every head is at most 1e-4 with the frequencies that attngeo computes from the config, and larger with
  another pairing or another base. *Partial*: only some dimensions rotate; the config says how many. *Two axes*: the
  angle of a pair follows the row or the column of an image patch. *Some layers*: other layers of the stack do not
  rotate.
* *no*: nothing rotates; the products at different positions are those of the plain form. Some layers could only be run
  on their own, not as a part of the model. For them *no* is weaker evidence: their products are plain, and the
  attention has no parameter for positions, or its code takes no angles, but no run of the whole model confirms it.
* *not proved*: no hypothesis agrees with the products, or the layers could not be run as a part of the model. The
  columns for rotary embedding are then empty. If this concerns only some layers, they are named.

The page is written by `python -m tools.prove_all`, which also writes the facts that the package ships.
"""
_GGUF_HEAD = """A tiny model with random weights is converted as llama.cpp does. transformers then loads the file that
attngeo reads, and the products of the loaded model are compared. Where transformers cannot load the architecture, the
products are those of the model that was converted."""


def coverage_page(everything: dict[str, dict[str, Any]], version: str) -> str:
    """Return the page in Markdown.

    everything: the content of docs/coverage.json, model type → verdict
    version:    the version of transformers
    """
    record = {kind: verdict for kind, verdict in everything.items() if not kind.startswith("gguf:")}
    gguf = {kind: verdict for kind, verdict in everything.items() if kind.startswith("gguf:")}
    lines = [_HEAD.format(version=version, types=len(record)), *_summary(record)]
    for status, title in _TITLES.items():
        members = sorted(kind for kind, verdict in record.items() if verdict["status"] == status)
        lines += ["", f"## {title} ({len(members)})", ""]
        if status == "right":
            lines += ["| type | stacks (layers of the tiny model) | error | rotary | notes |", "|---|---|---|---|---|"]
            lines += [_row(kind, record[kind]) for kind in members]
        elif status == "none":
            lines.append(", ".join(members))
        else:
            lines += ["| type | reason |", "|---|---|"]
            lines += [f"| {kind} | {cell(record[kind].get('reason', ''))} |" for kind in members]
    return "\n".join(lines + _gguf_section(gguf) + diffusers_section()) + "\n"


def _summary(record: dict[str, dict[str, Any]]) -> list[str]:
    """Return the table of counts and the sentences below it."""
    counts = Counter(verdict["status"] for verdict in record.values())
    ran = counts["right"] + counts["refused"] + counts["unproven"]
    share = 100 * counts["right"] / max(ran, 1)
    right = [verdict for verdict in record.values() if verdict["status"] == "right"]
    worst = max((verdict.get("worst", 0.0) for verdict in right), default=0.0)
    disagreeing = sum(not verdict.get("worst", 1.0) <= TOLERANCE for verdict in right)
    table = [*(counts[status] for status in _TITLES), disagreeing]
    return [
        "| right | refused | unproven | no self-attention | cannot be built | right but disagreeing |",
        "|---|---|---|---|---|---|",
        f"| {' | '.join(map(str, table))} |",
        "",
        f"{ran} types have self-attention and could be built. Of these, {share:.1f}% are right; their largest relative",
        f"error is {worst:.1e}. Where no product of the live model confirmed some layers of a right model, these",
        'layers are not scored, and the notes name them after "left out". Layers that the table of layouts does not',
        'have are named after "unknown layout". `attngeo score` names both.',
        "",
        *_rotary_summary(right),
    ]


def _rotary_summary(right: list[dict[str, Any]]) -> list[str]:
    """Return how many of the types that are right rotate, and for how many that is proved."""
    states = Counter(rotary_state(verdict) for verdict in right)
    share = 100 * states["yes"] / max(states["yes"] + states["not proved"], 1)
    worst = max((verdict.get("rotary_worst", 0.0) for verdict in right), default=0.0)
    return [
        "| rotates, proved | does not rotate | rotary not proved |",
        "|---|---|---|",
        f"| {states['yes']} | {states['no']} | {states['not proved']} |",
        "",
        f"Of the {states['yes'] + states['not proved']} right types that rotate or may rotate, the rotation is proved",
        f"in every layer for {share:.1f}%; the largest relative error at non-zero positions is {worst:.1e}.",
    ]


def _gguf_section(record: dict[str, dict[str, Any]]) -> list[str]:
    right = sorted(kind for kind, verdict in record.items() if verdict["status"] == "right")
    return [
        "",
        f"## GGUF architectures ({len(right)} right)",
        "",
        _GGUF_HEAD,
        "",
        "| type | stacks (layers of the tiny model) | error | rotary | notes |",
        "|---|---|---|---|---|",
        *(_row(kind, record[kind]) for kind in right),
        *(
            f"| {kind} | {verdict['status']} | | | {cell(verdict.get('reason', ''))} |"
            for kind, verdict in sorted(record.items())
            if kind not in right
        ),
    ]


def _row(kind: str, verdict: dict[str, Any]) -> str:
    """Return the table row of a type that is right."""
    stacks = ", ".join(f"{name} {count}" for name, count in verdict.get("stacks", {}).items())
    notes = ["qk-norm"] if verdict.get("qk_norm") else []
    notes += ["norm folded"] if verdict.get("norms") else []
    notes += ["prunable"] if verdict.get("prune") else []
    notes += [f"left out: {', '.join(verdict['skip'])}"] if verdict.get("skip") else []
    notes += [f"unknown layout: {', '.join(verdict['unknown'])}"] if verdict.get("unknown") else []
    notes += [verdict["note"]] if verdict.get("note") else []
    error = f"{verdict.get('worst', 0.0):.0e}"
    return f"| {kind} | {stacks} | {error} | {cell(rotary_text(verdict))} | {cell('; '.join(notes))} |"


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
