"""How often unrelated models are called related: pairs trained from different initial values, and untrained pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import attngeo
from attngeo.io.progress import Progress


@dataclass(frozen=True)
class UnrelatedPairs:
    """The p-values of a common origin of pairs of models without one."""

    p: tuple[float, ...]  # one per pair
    members: tuple[tuple[int, int], ...]  # the numbers of the two models of a pair; equal where no pairs share a model

    def rejections(self, level: float) -> Rejections:
        """Return the share of pairs with p ≤ level, and its 95% interval, resampled over models."""
        rng = np.random.default_rng(0)
        members, rejected = np.array(self.members), np.array(self.p) <= level
        models = int(members.max()) + 1
        rates = []
        for _ in range(2000):
            copies = np.bincount(rng.integers(models, size=models), minlength=models)  # how often each model was drawn
            same = members[:, 0] == members[:, 1]
            weight = np.where(same, copies[members[:, 0]], copies[members[:, 0]] * copies[members[:, 1]])
            if weight.sum():
                rates.append(float((weight * rejected).sum() / weight.sum()))
        low, high = np.quantile(rates, (0.025, 0.975))
        return Rejections(len(self.p), float(rejected.mean()), float(low), float(high))


@dataclass(frozen=True)
class Rejections:
    """The share of pairs that are rejected at a level, and its 95% interval."""

    pairs: int
    rate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.rate:.1%} ({100 * self.low:.1f} to {self.high:.1%})"


def p_values(pairs: Sequence[tuple[Any, Any]], align: bool, progress: Progress | None = None) -> tuple[float, ...]:
    """Return the p-value of a common origin of each pair; each pair has a seed of its own."""
    found = []
    for seed, (a, b) in enumerate(pairs):
        p = attngeo.compare(a, b, align=align, seed=seed).related.p_value
        assert p is not None
        found.append(p)
        if progress is not None:
            progress(seed + 1, len(pairs))
    return tuple(found)


def trained_pairs(models: Sequence[Path], align: bool, progress: Progress | None = None) -> UnrelatedPairs:
    """Return the p-values of all pairs of models trained from different initial values."""
    members = tuple(combinations(range(len(models)), 2))
    return UnrelatedPairs(p_values([(models[i], models[j]) for i, j in members], align, progress), members)


def independent_pairs(
    pairs: Sequence[tuple[Any, Any]], align: bool, progress: Progress | None = None
) -> UnrelatedPairs:
    """Return the p-values of pairs that share no model."""
    return UnrelatedPairs(p_values(pairs, align, progress), tuple((n, n) for n in range(len(pairs))))
