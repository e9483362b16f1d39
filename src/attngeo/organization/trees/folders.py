"""The distinct folders of a tree: who joins whom, and how much each weighs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import Floats, Ints
from attngeo.errors import InputError
from attngeo.organization.trees.partition import first_members


@dataclass(frozen=True)
class Folders:
    """Every folder once, children before parents: 0 … n−1 are the elements, the last one is the root.

    A folder that a tree repeats on several levels (the single child of its parent) is one entry here, with the
    span of its levels. The children of folder f are `child[start[f]:start[f + 1]]`.
    """

    size: Ints  # [folders] number of elements
    top: Ints  # [folders] first level the folder stands on
    bottom: Ints  # [folders] last level, the one below which it splits
    label: Ints  # [folders] its number on the bottom level
    start: Ints  # [folders + 1]
    child: Ints  # [folders − 1]

    @property
    def count(self) -> int:
        return len(self.size)

    @cached_property
    def parent(self) -> Ints:
        """[folders] the folder that each joins; −1 of the root."""
        parent = np.full(self.count, -1)
        parent[self.child] = np.repeat(np.arange(self.count), np.diff(self.start))
        return parent

    def heights(self, alpha: float, beta: float) -> Floats:
        """|F|^β · 2^{height·α}, added up over the folder's levels, height counted from 0 at the elements up.

        Times n^-β · 2^{−α·(depth − 1)} this is w(F) = (|F|/n)^β · 2^{−level·α}. A folder keeps it, whatever happens
        above it.
        """
        last = int(self.bottom.max())
        if alpha * last > 1000:
            raise InputError(f"tree: {last + 1} levels are too many for weights with alpha={alpha}")
        steps = np.cumsum(2.0 ** (alpha * np.arange(last + 1)))  # [height] Σ up to there
        spans = steps[last - self.top] - np.where(self.bottom == last, 0.0, steps[last - self.bottom - 1])
        return np.asarray(self.size**beta * spans, np.float64)

    @cached_property
    def members(self) -> dict[bytes, int]:
        """Each folder by its elements, packed: the same in two trees exactly where the folders are."""
        return {row.tobytes(): folder for folder, row in enumerate(np.packbits(self.inside, axis=1))}

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """[folders, n]: whether the element is in the folder. Depth first, every folder is one run of elements."""
        n = int(self.size[-1])
        ends = np.cumsum(self.size[self.child])
        before = ends - self.size[self.child]  # sizes of all children listed earlier
        first = np.zeros(self.count, np.int64)  # place of the folder's first element
        for folder in range(self.count - 1, n - 1, -1):
            span = slice(self.start[folder], self.start[folder + 1])
            first[self.child[span]] = first[folder] + before[span] - before[span.start]
        place = first[:n]
        return np.asarray((place >= first[:, None]) & (place < (first + self.size)[:, None]))


def folders_of(levels: Ints) -> Folders:
    """Return the distinct folders of a tree, `levels` [depth, n], from its elements up."""
    n, last = levels.shape[1], len(levels) - 1
    size, label = np.ones(2 * n, np.int64), np.arange(2 * n)
    top, bottom = np.full(2 * n, last), np.full(2 * n, last)
    count, numbers, children = n, [np.zeros(n, np.int64)], []
    current = np.arange(n)  # the folder that each label of the level below stands for
    for level in range(last - 1, -1, -1):
        parent = levels[level][first_members(levels[level + 1])]  # [labels below]
        found = np.bincount(parent)
        above = np.empty(len(found), np.int64)
        single = found[parent] == 1  # the only child: the same folder on both levels
        above[parent[single]] = current[single]
        top[current[single]] = level
        new = np.flatnonzero(found > 1)
        if len(new):
            names = np.arange(count, count + len(new))
            above[new] = names
            size[names] = np.bincount(parent, size[current]).astype(np.int64)[new]
            top[names], bottom[names], label[names] = level, level, new
            count += len(new)
            numbers.append(found[new])
            joining = np.flatnonzero(~single)
            children.append(current[joining[np.argsort(parent[joining], kind="stable")]])
        current = above
    start = np.concatenate([[0], np.cumsum(np.concatenate(numbers))])
    child = np.concatenate(children) if children else np.zeros(0, np.int64)
    return Folders(size[:count], top[:count], bottom[:count], label[:count], start, child)
