"""Finished runs with losses that are chosen by hand."""

from __future__ import annotations

from typing import Any

from experiments.initialisation.grid import Cell
from experiments.initialisation.runs import FinishedRun


def finished_run(start: str, seed: int, losses: list[float], **facts: Any) -> FinishedRun:
    """Return a run of 100 steps with these held-out losses at equal distances."""
    steps = [round(100 * i / max(1, len(losses) - 1)) for i in range(len(losses))]
    records = tuple({"step": step, "eval_loss": loss} for step, loss in zip(steps, losses, strict=True))
    return FinishedRun(Cell(start, 1e-3, seed, steps=100), records, {"seconds": 1.0, **facts})


def run_until_5(start: str, seed: int, losses: dict[int, float]) -> FinishedRun:
    """Return a run of at most 100 steps that ends below a loss of 5, with these held-out losses by step."""
    records = tuple({"step": step, "eval_loss": loss} for step, loss in losses.items())
    return FinishedRun(Cell(start, 1e-3, seed, steps=100, other=(("until_loss", 5.0),)), records, {"seconds": 1.0})


RUNS = [
    finished_run("unit symmetric", 0, [9.0, 5.0, 4.0, 3.0, 2.0]),
    finished_run("baseline", 0, [9.0, 8.0, 6.0, 5.0, 4.0]),
    finished_run("baseline", 1, [9.0, 8.0, 7.0, 5.0, 4.5]),
    finished_run("unit symmetric", 1, [9.0, 5.0, 4.6, 4.0, 3.5]),
    finished_run("unit symmetric", 2, [9.0, 1.0]),  # this seed has no baseline
    finished_run("authors", 0, [9.0, 8.0, 7.0, 6.0, 5.0]),
]
