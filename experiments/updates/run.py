"""Train one model and measure it at a few steps."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from attngeo.training.data.tokens import open_tokens
from attngeo.training.pretraining.architectures import Model
from attngeo.training.pretraining.config import PretrainConfig, load_config
from attngeo.training.pretraining.engine import process_group
from attngeo.training.pretraining.pretrain import train
from experiments.updates.measure import (
    Passes,
    average_rows,
    batches,
    change,
    change_columns,
    head_forms,
    persistence,
    transformers_copy,
)
from experiments.updates.records import Row

STEPS = (0, 200, 500, 1_000, 1_250, 1_500, 2_000, 4_000)
EVERY = 50  # steps between evaluations; the change that the optimiser makes is measured over as many


def config_for(objective: str, seed: int, out: Path, tokens: Path, **settings: Any) -> PretrainConfig:
    """Return the settings of a run: the baseline of the initialisation experiment at 4×256 and learning rate 5e-4."""
    usual: dict[str, Any] = {
        "size": "4x256",
        "lr": 5e-4,
        "steps": 9_500,
        "start": "baseline",
        "keep_model": False,
        "checkpoints": 0,
    }
    values = usual | {"objective": objective, "seed": seed, "out": str(out), "tokens": str(tokens)} | settings
    return load_config({"evaluations": values["steps"] // EVERY} | values)


def measured_run(config: PretrainConfig, steps: Collection[int], passes: Passes) -> list[Row]:
    """Train until the last of `steps` has been measured; return one row per head and step."""
    tokens = open_tokens(Path(config.tokens))
    given = batches(config, tokens, passes)
    rows: list[Row] = []
    forms: dict[int, Any] = {}  # step → weights of all heads
    every, reached = config.steps // config.evaluations, 0

    def observe(step: int, model: Model) -> None:
        nonlocal reached
        reached = step
        if not ({step, step - every} & {0, *steps}):
            return
        copy = transformers_copy(model)
        forms[step] = head_forms(copy)
        if step - every in steps:
            _add_changes(rows, forms, step - every, step)
        if step in steps:
            new = average_rows(copy, given, config.objective == "masked")
            same = {"objective": config.objective, "seed": config.seed, "step": step}
            rows.extend(same | row for row in new)
            print(f"{config.objective}, seed {config.seed}, step {step}: {len(new)} heads")

    train(config, tokens, process_group(), stop=lambda: reached > max(steps), observe=observe)
    return rows


def _add_changes(rows: list[Row], forms: dict[int, Any], step: int, later: int) -> None:
    """Add to the rows of `step` how the forms change until `later`, how since the beginning, and whether both agree."""
    for row in rows:
        if row["step"] == step:
            layer, head = row["layer"], row["head"]
            start, before, after = (forms[number][layer][head] for number in (0, step, later))
            moved, since_start = change(before, after), change(start, before)
            row |= change_columns("moved", moved) | change_columns("since_start", since_start)
            row |= persistence(moved, since_start)
