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
    chosen, second_chosen = np.flatnonzero(weights), np.flatnonzero(second_weights)
    summed_up = _needed(first, chosen)
    place = np.full(first.count, -1)
    place[summed_up] = np.arange(len(summed_up))
    sums = scratch.take((n, len(summed_up), b))
    threads.spread(
        lambda lo, hi: jit.folder_sums(slices, centre, sums, summed_up, place, first.start, first.child, lo, hi),
        n,
        cost=2.0 * sums.size,
    )
    # Weight over size: sums become weighted means.
    scale, second_scale = (weights / first.size)[chosen], (second_weights / second.size)[second_chosen]
    inner = (_needed(second, second_chosen), second.start, second.child, second_chosen, second_scale)

    def work(lo: int, hi: int, part: Floats) -> None:
        jit.least_folder_sums(slices, centre, sums, place, chosen[lo:hi], scale[lo:hi], *inner, part)

    least = summed(work, len(chosen), fours(n), fours(n), cost=0.5 * n * n * len(chosen) * len(second_chosen))
    return from_least(least[:n, :n])


def _needed(folders: Folders, chosen: Ints) -> Ints:
    """The chosen folders and all below them, single elements left out, children before parents."""
    n = int(folders.size[-1])
    wanted = np.zeros(folders.count, bool)
    wanted[chosen] = True
    for folder in range(folders.count - 1, n - 1, -1):
        if wanted[folder]:
            wanted[folders.children(folder)] = True
    return n + np.flatnonzero(wanted[n:])


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
