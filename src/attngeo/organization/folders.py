"""Partitions of the elements 0 … n − 1, and the distinct folders of a tree: sizes, levels, children and weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attngeo.arrays import Bools, Floats, Ints
from attngeo.errors import InputError


def canonical_labels(labels: Ints) -> Ints:
    """Return the same partition with its folders numbered by their smallest element.

    >>> canonical_labels(np.array([7, 3, 7, 3, 9]))
    array([0, 1, 0, 1, 2])
    """
    if labels.min() < 0 or labels.max() >= 4 * len(labels):
        labels = np.unique(labels, return_inverse=True)[1]
    first = first_members(labels)
    rank = np.empty_like(first)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))  # unused labels come last
    return rank[labels]


def first_members(labels: Ints) -> Ints:
    """Return the smallest element of each folder 0, 1, …, and n for a folder without elements.

    >>> first_members(np.array([0, 2, 0, 2]))
    array([0, 4, 1])
    """
    first = np.full(int(labels.max()) + 1, len(labels), np.int64)
    first[labels[::-1]] = np.arange(len(labels) - 1, -1, -1)  # of several writes to one place the last one counts
    return first


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

    def weights(self, alpha: float, beta: float) -> Floats:
        """Return Σ |F|^β · 2^{α·height} over the levels of each folder, [folders]; the last level has height 0.

        Multiplied by n^{−β} · 2^{−α·(depth − 1)} this is the weight of the tree distance, Σ (|F|/n)^β · 2^{−α·level}.
        Counting from the last level up has an advantage: a folder keeps its weight when the tree above it changes.
        """
        last, n = int(self.bottom.max()), int(self.size[-1])
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
        """Return [folders, n]: whether the folder contains the element."""
        inside = np.eye(self.count, int(self.size[-1]), dtype=bool)
        for folder in range(int(self.size[-1]), self.count):
            inside[folder] = inside[self.child[self.start[folder] : self.start[folder + 1]]].any(0)
        return inside


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
