"""The l1 distance between slices in the means over given folders: the inner sum of the tree distance.

For two sets of weighted folders, one per remaining axis, `FolderMeanDistances` computes

    d(u, v) = Σ_{F₁, F₂} w(F₁) w(F₂) |mean_{F₁×F₂} u − mean_{F₁×F₂} v|

for all pairs of slices u, v. It knows nothing about trees or about earlier results; `tree_distance` decides which
folders to pass. There are three implementations: numba kernels, plain NumPy, and torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import AnyArray, Floats, Ints, is_torch
from attngeo.io import threads
from attngeo.organization.geometry.l1 import (
    BLOCK_BYTES,
    from_minima,
    l1_distances,
    l1_upper,
    mirrored,
    multiple_of_four,
)
from attngeo.organization.geometry.partial_sums import sum_in_groups
from attngeo.organization.kernels import dispatch
from attngeo.organization.kernels.dispatch import NumbaKernels
from attngeo.organization.kernels.memory import Scratch
from attngeo.organization.trees.folders import Folders

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class WeightedFolders:
    """The distinct folders of a tree with one weight each; a folder of weight 0 is left out of all sums."""

    folders: Folders
    weights: Floats  # [folders]

    @cached_property
    def chosen(self) -> Ints:
        """Return the folders with a weight other than 0."""
        return np.flatnonzero(self.weights)

    @property
    def scale(self) -> Floats:
        """Return weight / size of each chosen folder, which turns a sum over the folder into a weighted mean."""
        return np.asarray((self.weights / self.folders.size)[self.chosen])


# Folders of the middle axis, and one or two sets of folders of the last axis ("sides") that are combined with them.
Pass: TypeAlias = tuple[WeightedFolders, tuple[WeightedFolders, ...]]


class FolderMeanDistances:
    """The slices [n, a, b] of one axis, ready to be compared in the means over any folders of the other two axes.

    A matrix has slices [n, a, 1]. NumPy slices must be contiguous.
    """

    def __init__(self, slices: AnyArray, scratch: Scratch) -> None:
        self._count, self._scratch = slices.shape[0], scratch
        self._jit = None if is_torch(slices) else dispatch.numba_kernels()
        # torch: [a, b, n], because matrix products then give points [k, n] with coordinates first.
        self._slices = slices.permute(1, 2, 0).contiguous().double() if is_torch(slices) else slices
        if self._jit is not None:
            # Distances do not depend on a common centre, and without it sums of minima are small. Sixteen slices
            # estimate it well enough.
            self._centre = slices[:: -(-len(slices) // 16)].mean(0, dtype=np.float64)  # [a, b]

    def through(self, passes: list[Pass]) -> list[list[Floats]]:
        """Return the distances [n, n] for every pass and side.

        The first folders of all passes must belong to one tree.
        """
        n = self._count
        results = [[np.zeros((n, n)) for _ in sides] for _, sides in passes]
        sums = None
        for result, (first, sides) in zip(results, passes, strict=True):
            used = [index for index, side in enumerate(sides) if len(side.chosen) and len(first.chosen)]
            if self._jit is None:
                distances_through = _torch_distances if is_torch(self._slices) else _numpy_distances
                for index in used:
                    result[index] = distances_through(self._slices, first, sides[index])
            elif used:
                sums = self._sums(self._jit, [first for first, _ in passes]) if sums is None else sums
                distances = self._compiled(self._jit, first, [sides[index] for index in used], *sums)
                for index, distance in zip(used, distances, strict=True):
                    result[index] = distance
        return results

    def _sums(self, jit: NumbaKernels, firsts: list[WeightedFolders]) -> tuple[Floats, Ints]:
        """Return the sums [n, folders, b] over all folders needed of the middle axis, and the row of each folder."""
        slices, centre = self._slices, self._centre
        folders = firsts[0].folders
        parents, start, children = _joins(folders, np.concatenate([first.chosen for first in firsts]))
        row_of = np.full(folders.count, -1)
        row_of[parents] = np.arange(len(parents))
        sums = self._scratch.take((slices.shape[0], len(parents), slices.shape[2]))
        threads.spread(
            lambda lo, hi: jit.folders.folder_sums(slices, centre, sums, start, children, row_of, lo, hi),
            len(slices),
            cost=4.0 * slices.shape[0] * slices.shape[2] * len(children),
        )
        return sums, row_of

    def _compiled(
        self, jit: NumbaKernels, first: WeightedFolders, sides: list[WeightedFolders], sums: Floats, row_of: Ints
    ) -> list[Floats]:
        """Return the distances [n, n] of every side, by the numba kernels."""
        n, _, b = self._slices.shape
        lanes = jit.folders.LANES
        chosen, scale = first.chosen, first.scale
        last = _merged(sides, b)
        shape = (len(sides), multiple_of_four(n), multiple_of_four(n))
        columns = max(jit.distances.COORDINATES, *(lanes * len(side.chosen) for side in sides))
        middle = (self._slices, self._centre, sums, row_of)

        def work(lo: int, hi: int, part: Floats) -> None:
            span = slice(lo * lanes, hi * lanes)  # whole vectors for every group
            means = self._scratch.take_per_thread((*shape[:2], columns))
            jit.folders.folder_minima(*middle, chosen[span], scale[span], *last, means, part)

        cost = n * len(chosen) * (0.5 * n * sum(len(side.chosen) for side in sides) + 8 * b)
        return from_minima(jit, sum_in_groups(jit, work, -(-len(chosen) // lanes), shape, cost), n)


def _merged(sides: list[WeightedFolders], b: int) -> tuple[int, Ints, Ints, Ints, Ints, Floats, Ints]:
    """Return the folders of several trees of one axis numbered as if they belonged to one tree.

    Single elements are shared; larger folders follow, one tree after another. The result are the arguments count_b,
    parents_b, start_b, children_b, chosen_b, scale_b and ends_b of the kernel `folder_minima`.
    """
    count, joined, starts, numbers = b, 0, [np.zeros(1, np.int64)], []
    for side in sides:
        parents, start, children = _joins(side.folders, side.chosen)
        numbers.append([np.where(of < b, of, of + count - b) for of in (parents, children, side.chosen)])
        starts.append(start[1:] + joined)
        count, joined = count + side.folders.count - b, joined + len(children)
    parents, children, chosen = (np.concatenate(column) for column in zip(*numbers, strict=True))
    scale = np.concatenate([side.scale for side in sides])
    ends = np.cumsum([0, *(len(side.chosen) for side in sides)])
    return count, parents, np.concatenate(starts), children[None], chosen, scale, ends


def _joins(folders: Folders, chosen: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (parents, start, children): parents[k] is the sum of children[start[k]:start[k + 1]], small ones first.

    The parent of an element or a chosen folder is the smallest chosen folder around it. Folders in between are
    skipped, because their sums are not needed.
    """
    n = int(folders.size[-1])
    wanted = np.zeros(folders.count, bool)
    wanted[chosen] = True
    around = folders.parent.copy()
    while (between := np.flatnonzero((around >= 0) & ~wanted[around])).size:
        around[between] = folders.parent[around[between]]
    wanted[:n] = True
    children = np.flatnonzero(wanted & (around >= 0))
    children = children[np.argsort(around[children], kind="stable")]
    parents, counts = np.unique(around[children], return_counts=True)
    return parents, np.concatenate([[0], np.cumsum(counts)]), children


def _numpy_distances(slices: NDArray[np.floating], first: WeightedFolders, second: WeightedFolders) -> Floats:
    """Return the distances [n, n] of slices [n, a, b]: means by matrix products, distances block by block."""
    n = slices.shape[0]
    rows, columns = (side.folders.inside[side.chosen] * side.scale[:, None] for side in (first, second))
    slices = slices.astype(np.float64, copy=False)
    total = np.zeros((n, n))
    step = max(1, BLOCK_BYTES // (8 * n * len(columns)))
    for lo in range(0, len(rows), step):
        part = rows[lo : lo + step] @ slices  # [n, step, b]
        total += l1_distances((part @ columns.T).reshape(n, -1))  # of [n, step · folders]
    return total


def _torch_distances(slices: torch.Tensor, first: WeightedFolders, second: WeightedFolders) -> Floats:
    """Return the distances [n, n] of torch slices [a, b, n], in the same way."""
    import torch

    a, b, n = slices.shape
    sides = []
    for side in (first, second):
        inside = torch.as_tensor(side.folders.inside[side.chosen], device=slices.device)
        sides.append(inside * torch.as_tensor(side.scale[:, None], device=slices.device))
    rows, columns = sides  # [folders, a], [folders, b]
    total = torch.zeros(n, n, dtype=torch.float64, device=slices.device)
    step = max(1, BLOCK_BYTES // (8 * n * len(columns)))
    for lo in range(0, len(rows), step):
        part = (rows[lo : lo + step] @ slices.view(a, b * n)).view(-1, b, n)  # [step, b, n]
        points = torch.bmm(columns.expand(len(part), -1, -1), part)  # [step, folders, n]
        total += l1_upper(points.view(-1, n))
    return mirrored(total)
