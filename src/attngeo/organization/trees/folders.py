"""The distinct folders of a tree, each listed once: sizes, levels, children, members and weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attngeo.arrays import Bools, Floats, Ints
from attngeo.errors import InputError
from attngeo.organization.trees.partition import first_members


@dataclass(frozen=True)
class Folders:
    """The folders of a tree, children before parents: 0 … n − 1 are the single elements, the last one is the root.

    A folder that appears on several levels (because it is the only child of its parent) is one entry, with the range
    of its levels. The children of folder f are `child[start[f]:start[f + 1]]`.
    """

    size: Ints  # [folders] number of elements
    top: Ints  # [folders] first level on which the folder appears
    bottom: Ints  # [folders] last level on which it appears; it splits below
    label: Ints  # [folders] its label on the bottom level
    start: Ints  # [folders + 1]
    child: Ints  # [folders − 1]

    @property
    def count(self) -> int:
        """Return the number of distinct folders."""
        return len(self.size)

    @cached_property
    def parent(self) -> Ints:
        """Return the parent of each folder, [folders]; −1 for the root."""
        parent = np.full(self.count, -1)
        parent[self.child] = np.repeat(np.arange(self.count), np.diff(self.start))
        return parent

    def weights(self, alpha: float, beta: float) -> Floats:
        """Return Σ |F|^β · 2^{α·height} over the levels of each folder, [folders]; the last level has height 0.

        Multiplied by n^{−β} · 2^{−α·(depth − 1)} this is the weight of the tree distance, Σ (|F|/n)^β · 2^{−α·level}.
        Counting from the last level up has an advantage: a folder keeps its weight when the tree above it changes.
        """
        last = int(self.bottom.max())
        n = int(self.size[-1])
        if abs(alpha) * last + abs(beta) * math.log2(n) > 1000:
            what = f"{last + 1} levels and {n} elements"
            raise InputError(f"tree: weights with alpha={alpha} and beta={beta} overflow, because the tree has {what}")
        steps = np.cumsum(2.0 ** (alpha * np.arange(last + 1)))  # [last + 1], Σ over all heights up to each
        spans = steps[last - self.top] - np.where(self.bottom == last, 0.0, steps[last - self.bottom - 1])
        return np.asarray(self.size**beta * spans, np.float64)

    @cached_property
    def members(self) -> dict[bytes, int]:
        """Return the folder with each set of elements; the key is the set packed into bytes."""
        return {row.tobytes(): folder for folder, row in enumerate(np.packbits(self.inside, axis=1))}

    @cached_property
    def inside(self) -> Bools:
        """Return [folders, n]: whether the folder contains the element.

        In a depth-first order of the elements every folder is one range, so two comparisons give its members.
        """
        n = int(self.size[-1])
        ends = np.cumsum(self.size[self.child])
        before = ends - self.size[self.child]  # total size of the children listed earlier
        first = np.zeros(self.count, np.int64)  # position of the folder's first element in the depth-first order
        for folder in range(self.count - 1, n - 1, -1):
            span = slice(self.start[folder], self.start[folder + 1])
            first[self.child[span]] = first[folder] + before[span] - before[span.start]
        position = first[:n]
        return np.asarray((position >= first[:, None]) & (position < (first + self.size)[:, None]))


def folders_of(levels: Ints) -> Folders:
    """Return the distinct folders of a tree with the labels `levels` [depth, n], found from the last level up."""
    n, last = levels.shape[1], len(levels) - 1
    size, label = np.ones(2 * n, np.int64), np.arange(2 * n)
    top, bottom = np.full(2 * n, last), np.full(2 * n, last)
    count, numbers, children = n, [np.zeros(n, np.int64)], []
    current = np.arange(n)  # folder of each label on the level below
    for level in range(last - 1, -1, -1):
        parent = levels[level][first_members(levels[level + 1])]  # [labels below]
        children_of = np.bincount(parent)
        above = np.empty(len(children_of), np.int64)
        single = children_of[parent] == 1  # an only child is the same folder on both levels
        above[parent[single]] = current[single]
        top[current[single]] = level
        new = np.flatnonzero(children_of > 1)
        if len(new):
            names = np.arange(count, count + len(new))
            above[new] = names
            size[names] = np.bincount(parent, size[current]).astype(np.int64)[new]
            top[names], bottom[names], label[names] = level, level, new
            count += len(new)
            numbers.append(children_of[new])
            joining = np.flatnonzero(~single)
            children.append(current[joining[np.argsort(parent[joining], kind="stable")]])
        current = above
    start = np.concatenate([[0], np.cumsum(np.concatenate(numbers))])
    child = np.concatenate(children) if children else np.zeros(0, np.int64)
    return Folders(size[:count], top[:count], bottom[:count], label[:count], start, child)
