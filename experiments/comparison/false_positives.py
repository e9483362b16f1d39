"""How often unrelated models are called related: pairs trained from different initial values, and untrained pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import attngeo
from attngeo.arrays import Floats
from attngeo.io.progress import Progress

LEVEL = 0.05


@dataclass(frozen=True)
class Rejections:
    """The share of pairs with p ≤ 0.05, and its 95% interval, resampled over models."""

    pairs: int
    rate: float
    low: float
    high: float
    uniform: float  # mean p-value; 0.5 for a test with the right level


def p_values(pairs: Sequence[tuple[Any, Any]], align: bool, progress: Progress | None = None) -> Floats:
    """Return the p-value of a common origin of each pair; each pair has a seed of its own."""
    found = []
    for seed, (a, b) in enumerate(pairs):
        found.append(attngeo.compare(a, b, align=align, seed=seed).related.p_value)
        if progress is not None:
            progress(seed + 1, len(pairs))
    return np.array(found, float)


def trained_rejections(models: Sequence[Path], align: bool, progress: Progress | None = None) -> Rejections:
    """Return the rejections of all pairs of models trained from different initial values."""
    numbered = list(combinations(range(len(models)), 2))
    p = p_values([(models[i], models[j]) for i, j in numbered], align, progress)
    return _summary(p, np.array(numbered), len(models))


def independent_rejections(
    pairs: Sequence[tuple[Any, Any]], align: bool, progress: Progress | None = None
) -> Rejections:
    """Return the rejections of pairs that share no model."""
    numbers = np.arange(len(pairs))
    return _summary(p_values(pairs, align, progress), np.stack([numbers, numbers], 1), len(pairs))


def _summary(p: Floats, members: np.ndarray[Any, Any], models: int) -> Rejections:
    """Return the rejection rate with an interval over resampled models.

    members: [pairs, 2], the models of each pair
    """
    rng = np.random.default_rng(0)
    rejected = p <= LEVEL
    rates = []
    for _ in range(2000):
        copies = np.bincount(rng.integers(models, size=models), minlength=models)  # how often each model was drawn
        same = members[:, 0] == members[:, 1]
        weight = np.where(same, copies[members[:, 0]], copies[members[:, 0]] * copies[members[:, 1]])
        if weight.sum():
            rates.append(float((weight * rejected).sum() / weight.sum()))
    low, high = np.quantile(rates, (0.025, 0.975))
    return Rejections(len(p), float(rejected.mean()), float(low), float(high), float(p.mean()))
