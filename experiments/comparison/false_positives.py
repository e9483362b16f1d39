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

LEVELS = (0.05, 0.01)  # at most 0.01 is the verdict "related"


@dataclass(frozen=True)
class Rejections:
    """The share of pairs with a p-value at or below each level, and its 95% interval, resampled over models."""

    pairs: int
    rates: dict[str, tuple[float, ...]]  # level → share, lower and upper end of its interval
    p_values: tuple[float, ...]


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
    """Return the rejection rates with intervals over resampled models.

    members: [pairs, 2], the models of each pair
    """
    rng = np.random.default_rng(0)
    same = members[:, 0] == members[:, 1]
    rates: dict[float, list[float]] = {level: [] for level in LEVELS}
    for _ in range(2000):
        copies = np.bincount(rng.integers(models, size=models), minlength=models)  # how often each model was drawn
        weight = np.where(same, copies[members[:, 0]], copies[members[:, 0]] * copies[members[:, 1]])
        if weight.sum():
            for level, found in rates.items():
                found.append(float((weight * (p <= level)).sum() / weight.sum()))
    return Rejections(
        len(p),
        {
            f"{level:g}": (float((p <= level).mean()), *map(float, np.quantile(found, (0.025, 0.975))))
            for level, found in rates.items()
        },
        tuple(p.tolist()),
    )
