"""l1 distances of slices through weighted pairs of folders: the hot path, compiled, or plain on numpy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from attngeo.organization import threads
from attngeo.organization.arrays import Floats, Ints, Scratch, is_torch
from attngeo.organization.folders import Folders
from attngeo.organization.l1 import BYTES, fours, from_least, l1_distances, summed


def folder_distance(
    slices: Any, first: Folders, weights: Floats, second: Folders, second_weights: Floats, scratch: Scratch
) -> Floats:
    """[n, n]: Σ w(F₁) w(F₂) |difference of means over F₁ × F₂| of slices [n, a, b]; what weighs 0 costs nothing."""
    jit = None if is_torch(slices) else threads.jit()
    sides = (first, weights, second, second_weights)
    return _plain(slices, *sides) if jit is None else _compiled(jit, slices, *sides, scratch)


def _compiled(
    jit: Any, slices: Any, first: Folders, weights: Floats, second: Folders, second_weights: Floats, scratch: Scratch
) -> Floats:
    n, _, b = slices.shape
    # Distances do not see the centre, and sums of minima are small without it: a few slices tell it well enough.
    centre = slices[:: -(-n // 16)].mean(0, dtype=np.float64)  # [a, b]
    chosen, chosen_b = np.flatnonzero(weights), np.flatnonzero(second_weights)
    parents, children = _joins(first, chosen)
    summed_up = np.unique(parents)
    place = np.full(first.count, -1)
    place[summed_up] = np.arange(len(summed_up))
    sums = scratch.take((n, len(summed_up), b))
    threads.spread(
        lambda lo, hi: jit.folder_sums(slices, centre, sums, parents, children, place, lo, hi), n, cost=4.0 * sums.size
    )
    # Weight over size: sums become weighted means.
    scale, scale_b = (weights / first.size)[chosen], (second_weights / second.size)[chosen_b]
    last = (second.count, *_joins(second, chosen_b), chosen_b, scale_b)

    def work(lo: int, hi: int, part: Floats) -> None:
        span = slice(lo * jit.LANES, hi * jit.LANES)  # whole vectors to every group
        jit.least_folder_sums(slices, centre, sums, place, chosen[span], scale[span], *last, part)

    cost = 0.5 * n * n * len(chosen) * len(chosen_b)
    least = summed(work, -(-len(chosen) // jit.LANES), fours(n), fours(n), cost)
    return from_least(least[:n, :n])


def _joins(folders: Folders, chosen: Ints) -> tuple[Ints, Ints]:
    """(parents, children): every join inside the chosen folders, in an order that works from the elements up."""
    wanted = np.zeros(folders.count, bool)
    wanted[chosen] = True
    for folder in range(folders.count - 1, int(folders.size[-1]) - 1, -1):
        if wanted[folder]:
            wanted[folders.children(folder)] = True
    parents = np.repeat(np.arange(folders.count), np.diff(folders.start))
    return parents[wanted[parents]], folders.child[wanted[parents]]


def _plain(slices: Any, first: Folders, weights: Floats, second: Folders, second_weights: Floats) -> Floats:
    """Means by matrix products, distances block by block; numpy or torch."""
    n = slices.shape[0]
    means: list[Any] = []
    for folders, weight in ((first, weights), (second, second_weights)):
        chosen = np.flatnonzero(weight)
        means.append(folders.means()[chosen] * weight[chosen, None])
    if is_torch(slices):
        import torch

        slices = slices.double()
        means = [torch.as_tensor(rows, device=slices.device) for rows in means]
    else:
        slices = slices.astype(np.float64, copy=False)
    total = np.zeros((n, n))
    step = max(1, BYTES // (8 * n * len(means[1])))
    for lo in range(0, len(means[0]), step):
        part = means[0][lo : lo + step] @ slices  # [n, step, b]
        total += l1_distances((part @ means[1].T).reshape(n, -1))
    return total
