"""Figures of softmax invariance beside those of the control, with 95% intervals of the difference.

Heads are what varies from sample to sample: figures of pairs of heads come from random halves of the heads, means over
single heads from a bootstrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attngeo.arrays import Floats, Ints
from attngeo.organization.geometry.agreement import Agreement, procrustes, rank_correlation
from attngeo.organization.geometry.diffusion import diffusion_map
from attngeo.organization.geometry.tree_agreement import level_agreement, mean_information
from attngeo.organization.organization import Organization
from attngeo.organization.questionnaire.flexible_tree import flexible_tree
from attngeo.organization.softmax.invariance_report import Contrast, HeadInvariance

TREE_SPLITS = 50  # of the heads into halves, for the standard error of the tree information


def network_contrasts(
    organizations: list[Organization], network: list[tuple[Agreement, ...]], bootstrap: int, rng: np.random.Generator
) -> list[Contrast]:
    """Return the contrasts of the head axis of the whole tensor.

    The bootstrap draws heads: rows and columns of the affinities. The diffusion maps are those of the affinities drawn.
    """
    before, after, control = (org.affinities[2] for org in organizations)

    def figures(drawn: Ints, other: Floats) -> tuple[float, float]:
        cut = np.ix_(drawn, drawn)
        distance = procrustes(diffusion_map(before[cut]), diffusion_map(other[cut]))
        return rank_correlation(before[cut], other[cut]), -distance  # negative, because smaller is better

    draws = half_samples(len(before), bootstrap, rng)
    better = np.asarray([np.subtract(figures(d, after), figures(d, control)) for d in draws]).reshape(-1, 2)
    own, of_control = (side[2] for side in network)
    information = own.information - of_control.information
    width = _information_error(before, after, control, draws[:TREE_SPLITS]) * student(len(before))
    return [
        Contrast("heads: affinity rank correlation", own.rank_correlation, of_control.rank_correlation,
                 *_interval(better[:, 0])),
        Contrast("heads: tree information", own.information, of_control.information,
                 information - width, information + width),
        Contrast("heads: Procrustes distance", own.procrustes, of_control.procrustes, *_interval(better[:, 1])),
    ]  # fmt: skip


def _information_error(before: Floats, after: Floats, control: Floats, halves: Sequence[Ints]) -> float:
    """Return the standard error of the tree information minus that of the control; NaN where no tree has a level.

    It is the root mean square of half the difference between a half of the heads and the other half, with trees that
    are grown for each: drawing elements of fixed trees would leave out how much the trees themselves depend on the
    heads. A difference of halves is free of the bias of a figure of fewer heads.
    """

    def information(drawn: Ints) -> float:
        cut = np.ix_(drawn, drawn)
        tree, *others = (flexible_tree(affinity[cut]) for affinity in (before, after, control))
        own, of_control = (mean_information(level_agreement(tree, other)) for other in others)
        return own - of_control

    every = np.arange(len(before))
    parts = [(half, np.setdiff1d(every, half)) for half in halves if len(half) < len(every)]  # not of a single head
    differences = [(information(half) - information(rest)) / 2 for half, rest in parts]
    known = np.asarray(differences)[np.isfinite(differences)]
    return float(np.sqrt(np.mean(known**2))) if len(known) else np.nan


def half_samples(n: int, count: int, rng: np.random.Generator) -> list[Ints]:
    """Return `count` random halves of 0 … n − 1.

    A figure of pairs of heads cannot draw a head twice, because its pair with itself would count as two heads that
    agree. The mean of n // 2 of n numbers, drawn without repetition, has the variance of the mean of n new numbers: the
    spread of the figure over halves is its standard error.
    """
    return [rng.permutation(n)[: max(1, n // 2)] for _ in range(count)]


def head_contrasts(
    heads: list[HeadInvariance], control: list[HeadInvariance], bootstrap: int, rng: np.random.Generator
) -> list[Contrast]:
    """Return the contrasts of means over single heads; the bootstrap draws heads."""
    draws = rng.integers(0, len(heads), (bootstrap, len(heads)))
    wider = widening(len(heads))
    contrasts = []
    for name, sign, figure in _HEAD_FIGURES:
        a, b = (np.asarray([figure(head) for head in side]) for side in (heads, control))
        better = sign * (a - b)
        # One head says nothing about the spread between heads.
        known = np.isfinite(better).all() and len(heads) > 1
        means = better[draws].mean(1) if known else np.full(bootstrap, np.nan)  # [bootstrap]
        spread = better.mean() + wider * (means - better.mean())
        contrasts.append(Contrast(name, float(a.mean()), float(b.mean()), *_interval(spread)))
    return contrasts


def widening(n: int) -> float:
    """Return by how much the bootstrap interval of a mean of n values has to be wider to hold the mean in 95% of cases.

    √(n/(n − 1)), because the bootstrap has the variance with the denominator n, times the quantile of Student's t over
    that of the normal distribution; 1 for a single value, which has no interval.

    >>> round(widening(4), 2), round(widening(16), 2), round(widening(270), 3)
    (1.87, 1.12, 1.006)
    """
    from scipy.stats import norm

    return float(np.sqrt(n / (n - 1)) * student(n) / norm.ppf(0.975)) if n > 1 else 1.0


def student(n: int) -> float:
    """Return how many standard errors a 95% interval of a mean of n values reaches to each side; NaN for one value."""
    from scipy.stats import t

    return float(t.ppf(0.975, n - 1)) if n > 1 else np.nan


# Name, sign that makes larger mean better, and the figure of one head.
_HEAD_FIGURES: tuple[tuple[str, int, Callable[[HeadInvariance], float]], ...] = (
    ("queries: affinity rank correlation", 1, lambda head: head.queries.rank_correlation),
    ("queries: tree information", 1, lambda head: head.queries.information),
    ("queries: Procrustes distance", -1, lambda head: head.queries.procrustes),
    ("keys: affinity rank correlation", 1, lambda head: head.keys.rank_correlation),
    ("keys: tree information", 1, lambda head: head.keys.information),
    ("keys: Procrustes distance", -1, lambda head: head.keys.procrustes),
    ("exponent of the logits", 1, lambda head: head.exponent.exponent),
    ("exponent of the residual", 1, lambda head: head.residual.exponent),
)


def _interval(draws: Floats) -> tuple[float, float]:
    """Return the 95% interval of the finite bootstrap values."""
    draws = draws[np.isfinite(draws)]
    low, high = np.quantile(draws, (0.025, 0.975)) if len(draws) else (np.nan, np.nan)
    return float(low), float(high)
