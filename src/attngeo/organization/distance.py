"""The dual distance: how far two slices of an axis are apart, seen through the trees of the other axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attngeo.errors import InputError
from attngeo.organization import threads
from attngeo.organization.arrays import Floats, checked, checked_axis, is_torch, slices_first
from attngeo.organization.folders import Folders
from attngeo.organization.l1 import BYTES, fours, from_least, l1_distances, summed
from attngeo.organization.tree import Tree


def tree_distance(array: Any, axis: int, trees: Mapping[int, Tree], alpha: float = 0.0, beta: float = 1.0) -> Floats:
    """[n, n] distances of the slices of `axis`: the weighted l1 distance of their means over all folders,

        d(u, v) = Σ_{F₁, F₂} w(F₁) w(F₂) |mean_{F₁×F₂} u − mean_{F₁×F₂} v|,   w(F) = (|F|/n)^β · 2^{−level·α}

    with the root on level 0. `trees` maps every other axis to its tree; `array` is a matrix or a 3-tensor.
    """
    array = checked(array)
    axis = checked_axis(axis, array.ndim)
    others = [a for a in range(array.ndim) if a != axis]
    found = {checked_axis(a, array.ndim): tree for a, tree in trees.items() if checked_axis(a, array.ndim) != axis}
    for other in others:
        if other not in found:
            raise InputError(f"tree_distance: the tree of axis {other} is missing")
        if found[other].size != array.shape[other]:
            size = found[other].size
            raise InputError(f"tree of axis {other}: has {size} elements, the array has {array.shape[other]} there")
    slices = slices_first(array, axis)  # [n, a] or [n, a, b]
    folders = [found[other].folders for other in others]
    if slices.ndim == 2:
        slices, folders = slices[:, :, None], [*folders, Tree([[0]]).folders]
    scales = [part.weights(alpha, beta) / part.size for part in folders]  # weight over size: sums become w · means
    jit = None if is_torch(slices) else threads.jit()
    if jit is None:
        return _plain(slices, folders, scales)
    return _compiled(jit, slices, folders, scales)


def _compiled(jit: Any, slices: Any, folders: list[Folders], scales: list[Floats]) -> Floats:
    first, last = folders
    n, a, b = slices.shape
    # Distances do not see the centre, and sums of minima are small without it: a few slices tell it well enough.
    centre = slices[:: -(-n // 16)].mean(0, dtype=np.float64)  # [a, b]
    sums = np.empty((n, first.count - a, b))
    threads.spread(
        lambda lo, hi: jit.folder_sums(slices, centre, sums, first.start, first.child, lo, hi),
        n,
        cost=2.0 * slices.size,
    )

    def work(lo: int, hi: int, part: Floats) -> None:
        inner = (last.start, last.child, scales[1])
        jit.least_folder_sums(slices, centre, sums, scales[0], *inner, part, lo, hi)

    least = summed(work, first.count, fours(n), fours(n), cost=0.5 * n * n * first.count * last.count)
    return from_least(least[:n, :n])


def _plain(slices: Any, folders: list[Folders], scales: list[Floats]) -> Floats:
    """Means by matrix products, distances block by block; numpy or torch."""
    n = slices.shape[0]
    means = [part.means() * (scale * part.size)[:, None] for part, scale in zip(folders, scales, strict=True)]
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
    return (total + total.T) / 2
