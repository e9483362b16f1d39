"""The partition tree of an axis: nested partitions of 0 … n − 1, from one folder down to single elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attngeo.arrays import Bools, Floats, Ints
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import load_arrays, naming_file, required_array, save_arrays
from attngeo.organization.haar import Rotations, rotations_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, init=False)
class Tree(Drawable):
    """A partition tree of n elements.

    Level 0 is the root, one folder with all elements. The last level has one folder per element. Each level refines
    the one above. `levels[l, i]` is the label of the folder of element i on level l; the constructor renumbers the
    folders of each level by their smallest element. `order` is a depth-first order of the elements, by default with
    children sorted by their smallest element; it breaks ties between children of equal size in the Haar basis.

    >>> Tree([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]])
    Tree(n=4, folders 1 · 2 · 4)
    """

    levels: Ints  # [depth, n]
    order: Ints  # [n]

    def __init__(self, levels: ArrayLike, order: ArrayLike | None = None) -> None:
        try:
            given = np.asarray(levels)
        except ValueError:
            raise InputError("tree: expected integer levels [depth, n], got rows of different lengths") from None
        if given.ndim != 2 or 0 in given.shape or given.dtype.kind not in "iu":
            raise InputError(f"tree: expected integer levels [depth, n], got {given.dtype} of shape {given.shape}")
        levels = np.stack([canonical_labels(row) for row in given.astype(np.int64)])
        n = levels.shape[1]
        if levels[0].max() > 0:
            raise InputError(f"tree: level 0 must be one folder, but it has {levels[0].max() + 1}")
        if levels[-1].max() < n - 1:
            raise InputError(
                f"tree: the last level must be {n} single elements, but it has {levels[-1].max() + 1} folders"
            )
        for depth, (above, below) in enumerate(pairwise(levels)):
            if (above[first_members(below)][below] != above).any():
                raise InputError(f"tree: level {depth + 1} does not refine level {depth}")
        levels.setflags(write=False)
        object.__setattr__(self, "levels", levels)
        order = np.lexsort(levels[::-1]) if order is None else _checked_order(np.asarray(order), levels)
        order = order.astype(np.int64)
        order.setflags(write=False)
        object.__setattr__(self, "order", order)

    @classmethod
    def dyadic(cls, n: int) -> Tree:
        """Return the tree that halves 0 … n − 1 in the given order; it does not depend on data."""
        if n < 1:
            raise InputError(f"tree: expected at least one element, got {n}")
        return cls.cut(n, lambda a, b: (a + b + 1) // 2)

    @classmethod
    def cut(cls, n: int, where: Callable[[int, int], int]) -> Tree:
        """Return the binary tree of 0 … n − 1 whose folders a … b − 1 are cut at `where(a, b)`."""
        levels, bounds = [], [0, n]
        while True:
            levels.append(np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)))
            if len(bounds) == n + 1:
                return cls(np.stack(levels))
            bounds = sorted(bounds + [where(a, b) for a, b in pairwise(bounds) if b - a > 1])

    @property
    def depth(self) -> int:
        """Return the number of levels, including the root and the single elements."""
        return int(self.levels.shape[0])

    @property
    def size(self) -> int:
        """Return the number of elements n."""
        return int(self.levels.shape[1])

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the number of folders on each level."""
        return tuple(int(width) for width in self.levels.max(1) + 1)

    def permuted(self, order: ArrayLike) -> Tree:
        """Return the tree of the axis reordered as `axis[order]`."""
        order = np.asarray(order)
        if order.dtype.kind not in "iu" or order.ndim != 1 or sorted(order.tolist()) != list(range(self.size)):
            raise InputError(f"tree: expected `order` to be a permutation of 0 … {self.size - 1}")
        return Tree(self.levels[:, order], np.argsort(order)[self.order])

    def closeness(self) -> Floats:
        """Return [n, n]: the size of the smallest folder that contains both elements, divided by n."""
        share = np.ones((self.size, self.size))
        for row in self.levels[1:]:
            sizes = np.bincount(row) / self.size
            np.copyto(share, sizes[row][:, None], where=row[:, None] == row[None, :])
        return share

    def smallest_folders(self) -> list[list[int]]:
        """Return the folders of two or more elements that contain no other such folder: the elements joined first.

        >>> Tree([[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 3], [0, 1, 2, 3]]).smallest_folders()
        [[0, 2]]
        """
        smallest: list[list[int]] = []
        taken: set[int] = set()
        for row in self.levels[::-1]:
            folders: dict[int, list[int]] = {}
            for element, folder in enumerate(row.tolist()):
                folders.setdefault(folder, []).append(element)
            for inside in folders.values():
                if len(inside) > 1 and not taken & set(inside):
                    smallest.append(inside)
                    taken |= set(inside)
        return smallest

    def haar(self) -> Floats:
        """Return the Haar basis as the columns of an [n, n] matrix, for inspection; the transforms never build it."""
        basis: Floats = self.rotations.apply(np.eye(self.size)[None], inverse=True)[0]
        return basis

    @cached_property
    def folders(self) -> Folders:
        """Return the distinct folders; a folder that appears on several levels is listed once."""
        return folders_of(self.levels)

    @cached_property
    def rotations(self) -> Rotations:
        """Return the Haar transform along this tree as n − 1 plane rotations."""
        return rotations_of(self.folders, self.order)

    def plot(self) -> Figure:
        """Return a figure of the tree, with the root at the top and the elements at the bottom."""
        return draw("tree_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write the tree to one .npz file and return its path."""
        return save_arrays(path, "tree", self.as_arrays("tree"), {})

    @classmethod
    def load(cls, path: str | Path) -> Tree:
        """Return the tree that `save` wrote."""
        arrays, _ = load_arrays(path, "tree")
        with naming_file(path):
            return cls.from_arrays(arrays, "tree")

    def as_arrays(self, name: str) -> dict[str, NDArray[np.int32]]:
        """Return the arrays of this tree for an archive, with `name` as prefix of their names."""
        return {f"{name}.levels": self.levels.astype(np.int32), f"{name}.order": self.order.astype(np.int32)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], name: str) -> Tree:
        """Return the tree whose arrays have the prefix `name` in an archive."""
        return cls(required_array(arrays, f"{name}.levels"), required_array(arrays, f"{name}.order"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        return np.array_equal(self.levels, other.levels) and np.array_equal(self.order, other.order)

    def __hash__(self) -> int:
        return hash((self.levels.shape, self.levels.tobytes()))

    def __repr__(self) -> str:
        return f"Tree(n={self.size}, folders {' · '.join(map(str, self.widths))})"


def _checked_order(order: Ints, levels: Ints) -> Ints:
    """Return `order` if it is a depth-first order of the elements of `levels`; raise InputError otherwise."""
    n = levels.shape[1]
    if order.shape != (n,) or order.dtype.kind not in "iu" or sorted(order.tolist()) != list(range(n)):
        raise InputError(f"tree: expected `order` to be a permutation of 0 … {n - 1}")
    for depth, row in enumerate(levels[:, order]):
        # In a depth-first order each folder is one run of elements, so there are as many runs as folders.
        if np.count_nonzero(np.diff(row)) != row.max():
            raise InputError(f"tree: `order` is not depth first, because it splits a folder of level {depth}")
    return order


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
