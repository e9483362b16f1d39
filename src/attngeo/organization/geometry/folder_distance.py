"""l1 distances of slices through weighted pairs of folders: the hot path, compiled, or plain on numpy and torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attngeo.arrays import Floats, Ints, is_torch
from attngeo.io import threads
from attngeo.organization.geometry.l1 import BYTES, fours, from_least, l1_distances, l1_upper, mirrored, summed
from attngeo.organization.kernels import dispatch
from attngeo.organization.kernels.memory import Scratch
from attngeo.organization.trees.folders import Folders


@dataclass(frozen=True)
class Weighted:
    """The distinct folders of a tree and a weight for each, 0 where one does not count."""

    folders: Folders
    weights: Floats  # [folders]

    @cached_property
    def chosen(self) -> Ints:
        """The folders that count."""
        return np.flatnonzero(self.weights)

    @property
    def scale(self) -> Floats:
        """Weight over size, of those that count: sums become weighted means."""
        return np.asarray((self.weights / self.folders.size)[self.chosen])


Pass = tuple[Weighted, tuple[Weighted, ...]]  # folders of the middle axis, and of the last on one side or two


class FolderDistances:
    """Slices [n, a, b], numpy in this order in memory, torch in any, and the memory to compare them in."""

    def __init__(self, slices: Any, scratch: Scratch) -> None:
        self._count, self._slices, self._scratch = slices.shape[0], slices, scratch
        self._jit = None if is_torch(slices) else dispatch.numba_kernels()
        if is_torch(slices):  # kept as products make points [k, n] of, coordinates outermost
            self._slices = slices.permute(1, 2, 0).contiguous().double()  # [a, b, n]
        if self._jit is not None:
            # Distances do not see the centre, and sums of minima are small without it; a few slices tell it.
            self._centre = slices[:: -(-len(slices) // 16)].mean(0, dtype=np.float64)  # [a, b]

    def through(self, passes: list[Pass]) -> list[list[Floats]]:
        """For every pass and side [n, n]: Σ w(F₁) w(F₂) |difference of means over F₁ × F₂|.

        All passes have the same first folders; what weighs 0 costs nothing.
        """
        n = self._count
        found = [[np.zeros((n, n)) for _ in sides] for _, sides in passes]
        sums = None
        for here, (first, sides) in zip(found, passes, strict=True):
            count = [place for place, side in enumerate(sides) if len(side.chosen) and len(first.chosen)]
            if self._jit is None:
                through = _on_device if is_torch(self._slices) else _plain
                for place in count:
                    here[place] = through(self._slices, first, sides[place])
            elif count:
                sums = self._sums(self._jit, [first for first, _ in passes]) if sums is None else sums
                distances = self._compiled(self._jit, first, [sides[place] for place in count], *sums)
                for place, distance in zip(count, distances, strict=True):
                    here[place] = distance
        return found

    def _sums(self, jit: Any, firsts: list[Weighted]) -> tuple[Floats, Ints]:
        """Sums over those folders of the middle axis that are needed, and where each of them stands."""
        slices, centre = self._slices, self._centre
        folders = firsts[0].folders
        parents, start, children = _joins(folders, np.concatenate([first.chosen for first in firsts]))
        place = np.full(folders.count, -1)
        place[parents] = np.arange(len(parents))
        sums = self._scratch.take((slices.shape[0], len(parents), slices.shape[2]))
        threads.spread(
            lambda lo, hi: jit.folder_sums(slices, centre, sums, start, children, place, lo, hi),
            len(slices),
            cost=4.0 * slices.shape[0] * slices.shape[2] * len(children),
        )
        return sums, place

    def _compiled(self, jit: Any, first: Weighted, sides: list[Weighted], sums: Floats, place: Ints) -> list[Floats]:
        n, _, b = self._slices.shape
        chosen, scale = first.chosen, first.scale
        last = _together(sides, b)
        shape = (len(sides), fours(n), fours(n))
        columns = max(jit.COLUMNS, *(jit.LANES * len(side.chosen) for side in sides))
        middle = (self._slices, self._centre, sums, place)

        def work(lo: int, hi: int, part: Floats) -> None:
            span = slice(lo * jit.LANES, hi * jit.LANES)  # whole vectors to every group
            means = self._scratch.mine((*shape[:2], columns))
            jit.least_folder_sums(*middle, chosen[span], scale[span], *last, means, part)

        cost = n * len(chosen) * (0.5 * n * sum(len(side.chosen) for side in sides) + 8 * b)
        return from_least(jit, summed(jit, work, -(-len(chosen) // jit.LANES), shape, cost), n)


def _together(sides: list[Weighted], b: int) -> tuple[int, Ints, Ints, Ints, Ints, Floats, Ints]:
    """Folders of several trees of one axis numbered as if of one: elements shared, the rest one tree after another."""
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
    """(parents, start, children): what every chosen folder is the sum of, smaller ones first.

    An element, or a chosen folder, is a child of the smallest chosen folder around it: those between are not needed.
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


def _plain(slices: Floats, first: Weighted, second: Weighted) -> Floats:
    """Means by matrix products, distances block by block."""
    n = slices.shape[0]
    rows, columns = (side.folders.inside[side.chosen] * side.scale[:, None] for side in (first, second))
    slices = slices.astype(np.float64, copy=False)
    total = np.zeros((n, n))
    step = max(1, BYTES // (8 * n * len(columns)))
    for lo in range(0, len(rows), step):
        part = rows[lo : lo + step] @ slices  # [n, step, b]
        total += l1_distances((part @ columns.T).reshape(n, -1))  # of [n, step · folders]
    return total


def _on_device(slices: Any, first: Weighted, second: Weighted) -> Floats:
    """The same of torch tensors [a, b, n]."""
    import torch

    a, b, n = slices.shape
    sides = []
    for side in (first, second):
        inside = torch.as_tensor(side.folders.inside[side.chosen], device=slices.device)
        sides.append(inside * torch.as_tensor(side.scale[:, None], device=slices.device))
    rows, columns = sides  # [folders, a], [folders, b]
    total = torch.zeros(n, n, dtype=torch.float64, device=slices.device)
    step = max(1, BYTES // (8 * n * len(columns)))
    for lo in range(0, len(rows), step):
        part = (rows[lo : lo + step] @ slices.view(a, b * n)).view(-1, b, n)  # [step, b, n]
        points = torch.bmm(columns.expand(len(part), -1, -1), part)  # [step, folders, n]
        total += l1_upper(points.view(-1, n))
    return mirrored(total)
