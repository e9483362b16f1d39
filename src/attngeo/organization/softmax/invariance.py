"""Does the softmax leave the geometry alone? What is found before it against what is found after, and a control.

The control is broken on purpose: in every row of every head the values are permuted, so that each row keeps its numbers
and loses their places. A figure means something when it is better than the control's beyond the bootstrap interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attngeo.arrays import Floats, Ints, to_numpy
from attngeo.errors import InputError
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.organization.capture.network_tensor import NetworkTensor, softmax
from attngeo.organization.checks import checked
from attngeo.organization.geometry.agreement import (
    Agreement,
    adjusted_information,
    agreement,
    level_agreement,
    procrustes,
    rank_correlation,
)
from attngeo.organization.geometry.diffusion import diffusion_map
from attngeo.organization.haar.smoothness import Holder, holder
from attngeo.organization.haar.transform import forward
from attngeo.organization.organization import Organization
from attngeo.organization.organize import organize
from attngeo.organization.softmax.invariance_report import Contrast, HeadInvariance, InvarianceReport
from attngeo.organization.softmax.paraproduct import paraproduct


@accepts_progress_bar
def softmax_invariance(
    tensor: NetworkTensor | Any,
    *,
    masked: bool = False,
    heads: Sequence[int] | None = None,
    iterations: int | None = None,
    bootstrap: int = 500,
    seed: int = 0,
    device: str | None = None,
    progress: Progress | bool | None = None,
) -> InvarianceReport:
    """Compare the geometry of attention logits [queries, keys, heads] with that of their softmax over the keys.

    The tensor is organised as a whole, and the matrix of each of `heads` (all, unless told) by itself, with the plain
    questionnaire. `masked` compares with the probabilities left by the tensor's mask instead of those of whole rows.
    `progress(done, total)` is called after every organisation; `progress=True` draws a bar.

    >>> report = softmax_invariance(planted((20, 20, 8), seed=0)[0], heads=[0, 3], bootstrap=50)
    >>> report["keys: affinity rank correlation"].value > 0.5
    True
    """
    logits, labels, mask = _logits(tensor, masked)
    chosen = list(range(logits.shape[2])) if heads is None else [int(h) for h in heads]
    if not chosen or min(chosen) < 0 or max(chosen) >= logits.shape[2]:
        raise InputError(f"softmax_invariance: expected heads among 0 … {logits.shape[2] - 1}, got {heads}")
    rng = np.random.default_rng(seed)
    broken_logits = rng.permuted(logits, axis=1)
    stages = (logits, softmax(logits, mask), softmax(broken_logits, mask))
    total, done = 3 + len(chosen), 0

    def geometry(array: Floats, where: str | None = None) -> Organization:
        return organize(array, iterations=iterations if array.ndim == 3 else None, refine=False, device=where)

    def report() -> None:
        nonlocal done
        done += 1
        if callable(progress):
            progress(done, total)

    whole = []
    for stage in stages:
        whole.append(geometry(stage, device))
        report()
    network = [_between(whole[0], after) for after in whole[1:]]
    found: list[HeadInvariance] = []
    found_broken: list[HeadInvariance] = []
    for h in chosen:
        before, after, broken = (geometry(np.ascontiguousarray(stage[:, :, h])) for stage in stages)
        for log, against, into in ((logits, after, found), (broken_logits, broken, found_broken)):
            queries, keys = _between(before, against)
            fits = _exponents(log[:, :, h], before)
            into.append(HeadInvariance(labels[h], queries, keys, *fits))
        report()
    contrasts = (
        *_network_contrasts(whole, network, bootstrap, rng),
        *_head_contrasts(found, found_broken, bootstrap, rng),
    )
    kind = "masked softmax" if masked else "softmax"
    own, control = network
    name = tensor.name if isinstance(tensor, NetworkTensor) else ""
    return InvarianceReport(kind, own, control, tuple(found), tuple(found_broken), contrasts, name, seed)


def _logits(tensor: Any, masked: bool) -> tuple[Floats, tuple[str, ...], Any]:
    if isinstance(tensor, NetworkTensor):
        if tensor.stage != "logits":
            raise InputError("softmax_invariance: the tensor holds probabilities, expected logits")
        if masked and tensor.mask is None:
            raise InputError("softmax_invariance: the tensor has no mask, there are no masked probabilities")
        return tensor.values.astype(np.float64), tensor.heads, tensor.mask if masked else None
    if masked:
        raise InputError("softmax_invariance: a plain array has no mask, expected a NetworkTensor")
    array = to_numpy(checked(tensor, "logits", (3,)))
    return array.astype(np.float64), tuple(map(str, range(array.shape[2]))), None


def _between(before: Organization, after: Organization) -> tuple[Agreement, ...]:
    sides = zip(before.affinities, before.trees, after.affinities, after.trees, strict=True)
    return tuple(agreement(*side) for side in sides)


def _exponents(logits: Floats, organization: Organization) -> tuple[Holder, Holder]:
    """Regularity of f and of the softmax's residual, both on the trees of f."""
    rows, columns = organization.trees
    residual = paraproduct(logits, rows, columns, "softmax").residual
    both = {0: rows, 1: columns}
    return holder(forward(logits, both), (rows, columns)), holder(forward(residual, both), (rows, columns))


def _network_contrasts(
    whole: list[Organization], network: list[tuple[Agreement, ...]], bootstrap: int, rng: np.random.Generator
) -> list[Contrast]:
    """The head axis of the whole tensor; heads are drawn again with their rows, columns, leaves and points."""
    before, after, broken = (org.affinities[2] for org in whole)
    maps = [diffusion_map(affinity) for affinity in (before, after, broken)]
    trees = [org.trees[2] for org in whole]
    matched = [_matched(trees[0], tree) for tree in trees[1:]]

    def figures(drawn: Ints, side: int) -> tuple[float, float, float]:
        # The same head drawn twice is one pair with itself, not two heads that agree: each head counts once.
        drawn = np.unique(drawn)
        cut = np.ix_(drawn, drawn)
        levels = [adjusted_information(a[drawn], b[drawn]) for a, b in matched[side]]
        return (
            rank_correlation(before[cut], (after, broken)[side][cut]),
            float(np.mean(levels)) if levels else np.nan,
            -procrustes(maps[0][drawn], maps[1 + side][drawn]),  # less is better
        )

    n = len(before)
    draws = [rng.integers(0, n, n) for _ in range(bootstrap)]
    better = np.asarray([np.subtract(figures(d, 0), figures(d, 1)) for d in draws]).reshape(-1, 3)
    own, control = (side[2] for side in network)
    names = ("heads: affinity rank correlation", "heads: tree information", "heads: Procrustes distance")
    values = [(a.rank_correlation, a.information, a.procrustes) for a in (own, control)]
    return [
        Contrast(name, value, broken_value, *_interval(column))
        for name, value, broken_value, column in zip(names, *values, better.T, strict=True)
    ]


def _head_contrasts(
    heads: list[HeadInvariance], broken: list[HeadInvariance], bootstrap: int, rng: np.random.Generator
) -> list[Contrast]:
    """Means over heads, heads drawn again."""
    draws = rng.integers(0, len(heads), (bootstrap, len(heads)))
    found = []
    for name, sign, figure in _HEAD_FIGURES:
        a, b = (np.asarray([figure(head) for head in side]) for side in (heads, broken))
        better = sign * (a - b)
        better = better[draws] if np.isfinite(better).all() else np.full(draws.shape, np.nan)
        found.append(Contrast(name, float(a.mean()), float(b.mean()), *_interval(better.mean(1))))
    return found


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


def _matched(tree: Any, other: Any) -> list[tuple[Ints, Ints]]:
    """Label rows of levels paired as level_agreement pairs them."""
    pairs = level_agreement(tree, other)
    return [
        (tree.levels[tree.widths.index(pair.folders)], other.levels[other.widths.index(pair.folders_other)])
        for pair in pairs
    ]


def _interval(draws: Floats) -> tuple[float, float]:
    draws = draws[np.isfinite(draws)]
    low, high = np.quantile(draws, (0.025, 0.975)) if len(draws) else (np.nan, np.nan)
    return float(low), float(high)
