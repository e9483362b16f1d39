"""l1 distances of slices through weighted pairs of folders: the hot path, compiled, or plain on numpy and torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attngeo.organization import threads
from attngeo.organization.arrays import Floats, Ints, Scratch, is_torch
from attngeo.organization.folders import Folders
from attngeo.organization.l1 import BYTES, fours, from_least, l1_distances, summed


@dataclass(frozen=True)
class Term:
    """Weighted folders of the middle axis with weighted folders of the last, counted in or out."""

    sign: int
    folders: Folders
    first: Floats  # [folders] weights
    others: Folders
    second: Floats  # [others] weights


class FolderDistances:
    """Slices [n, a, b] and the memory to compare them in."""

    def __init__(self, slices: Any, scratch: Scratch) -> None:
        self._slices, self._scratch = slices, scratch
        self._jit = None if is_torch(slices) else threads.jit()
        if self._jit is not None:
            # Distances do not see the centre, and sums of minima are small without it; a few slices tell it.
            self._centre = slices[:: -(-len(slices) // 16)].mean(0, dtype=np.float64)  # [a, b]

    def through(self, terms: list[Term]) -> Floats:
        """[n, n]: ± Σ w(F₁) w(F₂) |difference of means over F₁ × F₂|, added up over terms with the same first folders.

        What weighs 0 costs nothing.
        """
        n = self._slices.shape[0]
        total = np.zeros((n, n))
        terms = [term for term in terms if term.first.any() and term.second.any()]
        if terms and self._jit is None:
            for term in terms:
                total += term.sign * _plain(self._slices, term)
        elif terms:
            sums = self._sums(self._jit, terms)
            for term in terms:
                total += term.sign * self._compiled(self._jit, term, *sums)
        return total

    def _sums(self, jit: Any, terms: list[Term]) -> tuple[Floats, Ints]:
        """Sums over those folders of the middle axis that are needed, and where each of them stands."""
        slices, centre = self._slices, self._centre
        parents, children = _joins(terms[0].folders, np.flatnonzero(sum(term.first for term in terms)))
        needed = np.unique(parents)
        place = np.full(terms[0].folders.count, -1)
        place[needed] = np.arange(len(needed))
        sums = self._scratch.take((slices.shape[0], len(needed), slices.shape[2]))
        threads.spread(
            lambda lo, hi: jit.folder_sums(slices, centre, sums, parents, children, place, lo, hi),
            len(slices),
            cost=4.0 * sums.size,
        )
        return sums, place

    def _compiled(self, jit: Any, term: Term, sums: Floats, place: Ints) -> Floats:
        n = self._slices.shape[0]
        chosen, chosen_b = np.flatnonzero(term.first), np.flatnonzero(term.second)
        # Weight over size: sums become weighted means.
        scale = (term.first / term.folders.size)[chosen]
        scale_b = (term.second / term.others.size)[chosen_b]
        last = (term.others.count, *_joins(term.others, chosen_b), chosen_b, scale_b)

        def work(lo: int, hi: int, part: Floats) -> None:
            span = slice(lo * jit.LANES, hi * jit.LANES)  # whole vectors to every group
            jit.least_folder_sums(self._slices, self._centre, sums, place, chosen[span], scale[span], *last, part)

        cost = n * len(chosen) * (0.5 * n * len(chosen_b) + 8 * self._slices.shape[2])
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


def _plain(slices: Any, term: Term) -> Floats:
    """Means by matrix products, distances block by block; numpy or torch."""
    n = slices.shape[0]
    means: list[Any] = []
    for folders, weight in ((term.folders, term.first), (term.others, term.second)):
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
