"""Compare initialisations over paired runs: difference in final loss, steps saved, and the uncertainty of both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from experiments.initialisation.grid import Cell
from experiments.initialisation.runs import FinishedRun


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95% interval and the two-sided p-value of the hypothesis that it is 0."""

    mean: float
    low: float
    high: float
    p: float
    detectable: float  # smallest true difference that a test at the 5% level finds 4 times of 5, with this spread


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of values over independent seeds, with Student's t; with one value the rest is NaN."""
    from scipy import stats

    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Estimate(mean, math.nan, math.nan, math.nan, math.nan)
    error = _standard_error(values)
    quantile = float(stats.t.ppf(0.975, n - 1))
    p = float(2 * stats.t.sf(abs(mean) / error, n - 1)) if error > 0 else (0.0 if mean else 1.0)
    return Estimate(mean, mean - quantile * error, mean + quantile * error, p, noncentrality(n) * error)


def equivalence_p(differences: Sequence[float], margin: float) -> float:
    """Return the p-value of the hypothesis that the true mean lies beyond ±`margin`; NaN with fewer than two values.

    It is the larger one of two one-sided t-tests. A small value says that whatever difference there is, is smaller
    than the margin; a large value says only that this was not shown.

    >>> round(equivalence_p([0.001, -0.002, 0.003], 0.02), 3), round(equivalence_p([0.05, -0.04, 0.03], 0.02), 2)
    (0.003, 0.41)
    """
    from scipy import stats

    n = len(differences)
    if n < 2:
        return math.nan
    mean = math.fsum(differences) / n
    error = _standard_error(differences)
    if error == 0:
        return float(abs(mean) >= margin)
    return float(stats.t.sf((margin - abs(mean)) / error, n - 1))


def _standard_error(values: Sequence[float]) -> float:
    n = len(values)
    mean = math.fsum(values) / n
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)


@cache
def noncentrality(n: int, power: float = 0.8) -> float:
    """Return the difference λ, in standard errors, that a paired t-test of n pairs at the 5% level finds with `power`.

    P(|Z + λ| > t·R) = power, where Z is standard normal, R = √(χ²/(n−1)) is the estimated standard error over the true
    one, and t is the 97.5% quantile of Student's distribution with n − 1 degrees of freedom.
    """
    import numpy as np
    from scipy import integrate, optimize, special, stats

    freedom = n - 1
    quantile = float(stats.t.ppf(0.975, freedom))
    r = np.linspace(0.0, 12.0, 4001)  # [grid], values of R
    density = stats.chi.pdf(r * math.sqrt(freedom), freedom) * math.sqrt(freedom)  # [grid]

    def excess_power(difference: float) -> float:
        given_r = special.ndtr(difference - quantile * r) + special.ndtr(-difference - quantile * r)  # [grid]
        return float(integrate.simpson(given_r * density, x=r)) - power

    return float(optimize.brentq(excess_power, 0.5, 8 * quantile))


def steps_saved(run: FinishedRun, reference: FinishedRun) -> float | None:
    """Return 1 − (first evaluated step with a loss at or below the last one of `reference`)/(all steps of `reference`).

    None if there is no such step. A reference that ended below `until_loss` is reached where the loss is below that.
    """
    target = reference.loss if run.cell.until_loss is None else max(reference.loss, run.cell.until_loss)
    first = next((record["step"] for record in run.records if record["eval_loss"] <= target), None)
    return None if first is None else 1 - first / reference.records[-1]["step"]


@dataclass(frozen=True)
class Comparison:
    """An initialisation against a reference, usually the baseline, over the seeds both have."""

    cell: Cell  # of the first seed
    seeds: tuple[int, ...]
    losses: tuple[float, ...]  # final losses, by seed
    difference: Estimate | None  # of the final loss, minus that of the reference; None for the reference itself
    saved: Estimate | None  # share of the steps saved; a loss that is never reached counts as 0
    reached: int  # number of seeds that reached the final loss of the reference
    diverged: tuple[tuple[int, int], ...]  # (seed, step) of runs that diverged; they are in no mean
    against: str = "baseline"  # the reference
    differences: tuple[float, ...] = ()  # of the final losses, by seed; empty for the reference itself

    @property
    def loss(self) -> float:
        """Mean final loss; NaN if every run diverged."""
        return math.fsum(self.losses) / len(self.losses) if self.losses else math.nan


def compare(runs: Iterable[FinishedRun], against: str = "baseline") -> list[Comparison]:
    """Return the comparison of every initialisation in every setting.

    against: the initialisation that the others are compared with, in the same setting and with the same seeds
    """
    groups: dict[tuple[Any, ...], dict[int, FinishedRun]] = {}
    for run in runs:
        groups.setdefault((*run.cell.setting, run.cell.start), {})[run.cell.seed] = run
    table = []
    for (*setting, start), by_seed in sorted(groups.items(), key=_order):
        own, reference = _converged(by_seed), _converged(groups.get((*setting, against), {}))
        seeds = sorted(set(own) & set(reference)) or sorted(own)
        difference = saved = None
        differences: tuple[float, ...] = ()
        reached = 0
        if start != against and seeds and set(seeds) <= set(reference):
            differences = tuple(own[seed].loss - reference[seed].loss for seed in seeds)
            difference = estimate(differences)
            savings = [steps_saved(own[seed], reference[seed]) for seed in seeds]
            reached = sum(saving is not None for saving in savings)
            saved = estimate([saving or 0.0 for saving in savings])
        losses = tuple(own[seed].loss for seed in seeds)
        diverged = tuple((seed, run.diverged) for seed, run in sorted(by_seed.items()) if run.diverged is not None)
        cell = by_seed[min(by_seed)].cell
        table.append(Comparison(cell, tuple(seeds), losses, difference, saved, reached, diverged, against, differences))
    return table


def _order(group: tuple[tuple[Any, ...], Any]) -> tuple[Any, ...]:
    """Sort key: by setting, the usual settings first; then the baseline before the others, which keep their order."""
    *setting, other, start = group[0]
    return *setting, len(other), str(other), start != "baseline"


def _converged(runs: Mapping[int, FinishedRun]) -> dict[int, FinishedRun]:
    return {seed: run for seed, run in runs.items() if run.diverged is None}
