"""The tables of docs/comparison.md and RESULTS.md, made from the logs: `python -m experiments.comparison page`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.page_tables import pipe_table, replace_tables

KINDS = {"bert": "BERT", "llama": "LLaMA"}
CASES = {
    "fine-tuned": "fine-tuned for {steps:,} steps",
    "same initial values": "same initial values, two orders of the rows, {steps:,} steps",
    "noise": "noise of {size:.0%} of the norm of every matrix",
    "permuted": "fine-tuned for 100 steps, hidden dimensions permuted",
}
Row = dict[str, Any]


def read_logs(folder: Path) -> dict[str, list[Row]]:
    """Return the measurements of each command: name of the log → its lines."""
    return {
        path.stem: [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    }


def with_tables(page: str, logs: dict[str, list[Row]]) -> str:
    """Return the page with its tables made anew from the logs."""
    makers = {
        "real-models": lambda rows: {"real models": real_models(rows)},
        "false-positives": lambda rows: {"false positives": false_positives(rows)},
        "power": lambda rows: {f"power, {kind}": power(rows, kind) for kind in KINDS},
        "distances": lambda rows: {"distances": distances(rows), "distances between seeds": between_seeds(rows)},
    }
    made: dict[str, str] = {}
    for name, rows in logs.items():
        made |= makers[name](rows)
    return replace_tables(page, made, "log")


def real_models(rows: Sequence[Row]) -> str:
    """Return one row per pair of published models."""
    head = (
        "pair",
        "median change of the heads",
        "p",
        "mean matched cosine",
        "permuted bases",
        "layers paired with the next",
    )
    lines = [
        (row["pair"], _percent(row["change"]), _p(row), f"{row['cosine']:.3f}", _null(row), f"{row['control']:.3f}")
        for row in rows
    ]
    return pipe_table(head, lines)


def false_positives(rows: Sequence[Row]) -> str:
    """Return how often unrelated models have a small p-value, without and with `align`, at the levels of the log."""
    found = {(row["kind"], row["models"], row["align"]): row for row in rows}
    levels = [f"p ≤ {level}{text}" for text in ("", ", align") for level in ("0.05", "0.01")]
    lines = []
    for kind, title in KINDS.items():
        for models in ("trained", "untrained"):
            pair = [found[kind, models, align] for align in (False, True)]
            rates = [_rate(row["rates"][level]) for row in pair for level in ("0.05", "0.01")]
            lines.append((f"{title}, {models}", str(pair[0]["pairs"]), *rates))
    return pipe_table(("models", "pairs", *levels), lines)


def power(rows: Sequence[Row], kind: str) -> str:
    """Return one row per copy of a trained model."""
    lines = []
    for row in rows:
        if row["kind"] == kind:
            case = CASES[row["case"]].format(**row).replace(" 1 steps", " 1 step")
            case += ", with `align`" if row.get("align") else ""
            lines.append((case, _percent(row["change"]), f"{row['cosine']:.3f}", _null(row), _p(row)))
    return pipe_table(("copy", "median change of the heads", "mean matched cosine", "permuted bases", "p"), lines)


def distances(rows: Sequence[Row]) -> str:
    """Return the distances of the checkpoints of each run from its last one."""
    runs = [row for row in rows if "from_last" in row]
    steps = [f"step {step}" for step in runs[0]["steps"][:-1]]
    lines = [
        (f"{KINDS[row['kind']]}, seed {row['seed']}", *map(_distance, row["from_last"][:-1]), f"{row['spearman']:.1f}")
        for row in runs
    ]
    return pipe_table(("run", *steps, "rank correlation with the steps that are left"), lines)


def between_seeds(rows: Sequence[Row]) -> str:
    """Return the distances between the two seeds at each step."""
    pairs = [row for row in rows if "between_seeds" in row]
    steps = [f"step {step}" for step in pairs[0]["steps"]]
    return pipe_table(
        ("two seeds of", *steps), [(KINDS[row["kind"]], *map(_distance, row["between_seeds"])) for row in pairs]
    )


def _rate(rate: Sequence[float]) -> str:
    share, low, high = (100 * value for value in rate)
    return f"{share:.1f}% [{low:.1f}, {high:.1f}]"


def _null(row: Row) -> str:
    mean, std = row["null"]
    return f"{mean:.3f} ± {std:.3f}"


def _percent(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:,.0%}"


def _distance(value: float) -> str:
    return f"{value:.3f}"


def _p(row: Row) -> str:
    """Return the p-value; the smallest that the draws allow is a bound."""
    smallest = 0.01 if row.get("align") else 0.001
    return f"≤ {smallest}" if row["p"] <= smallest else f"{row['p']:.2f}"
