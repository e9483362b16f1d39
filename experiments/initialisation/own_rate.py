"""Initialisations compared at their own best learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.initialisation.runs import FinishedRun, grouped

SCREENING_SEED = 0  # the seed with which all rates were tried


def best_rates(runs: Sequence[FinishedRun]) -> dict[str, float]:
    """Return the learning rate with the lowest final loss of every initialisation, judged by the screening seed."""
    screened = [run for run in runs if run.cell.seed == SCREENING_SEED and run.diverged is None]
    parts = grouped(screened, lambda run: run.cell.start)
    return {part[0].cell.start: min(part, key=lambda run: run.loss).cell.lr for part in parts}


def at_best_rates(runs: Sequence[FinishedRun], against: str = "baseline") -> list[FinishedRun]:
    """Return the runs at the best rates, all with the rate of `against` in their cells, so that they are compared."""
    rates = best_rates(runs)
    chosen = [run for run in runs if run.cell.lr == rates.get(run.cell.start)]
    return [replace(run, cell=replace(run.cell, lr=rates[against])) for run in chosen]
