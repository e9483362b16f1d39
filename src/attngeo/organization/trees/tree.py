"""A partition tree: nested partitions of 0 … n−1, from one folder down to single elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.arrays import Floats, Ints
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import load_arrays, naming_file, required_array, save_arrays
from attngeo.organization.trees.folders import Folders, folders_of
from attngeo.organization.trees.partition import canonical, first_members
from attngeo.organization.trees.rotations import Rotations, rotations_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, init=False)
class Tree(Drawable):
    """A hierarchy of n elements: level 0 the root, the last level the elements, each level refining the one above.

    `levels[l, i]` names the folder of element i on level l; on every level folders are numbered by their smallest
    element, whatever names were given. `order` is a depth-first order of the elements, which decides between
    children of equal size in the Haar basis; by default children stand by their smallest element.

    >>> Tree([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]])
    Tree(n=4, folders 1 · 2 · 4)
    """

    levels: Ints  # [depth, n]
    order: Ints  # [n]

    def __init__(self, levels: Any, order: Any = None) -> None:
        levels = np.asarray(levels)
        if levels.ndim != 2 or 0 in levels.shape or levels.dtype.kind not in "iu":
            raise InputError(f"tree: expected integer levels [depth, n], got {levels.dtype} of shape {levels.shape}")
        levels = np.stack([canonical(row) for row in levels.astype(np.int64)])
        n = levels.shape[1]
        if levels[0].max() > 0:
            raise InputError(f"tree: level 0 must be one folder, it has {levels[0].max() + 1}")
        if levels[-1].max() < n - 1:
            raise InputError(f"tree: the last level must be {n} single elements, it has {levels[-1].max() + 1} folders")
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
        """Halving in the given order: what a tree is worth that knows nothing of the data."""
        if n < 1:
            raise InputError(f"tree: expected at least one element, got {n}")
        levels, bounds = [], [0, n]
        while True:
            levels.append(np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)))
            if len(bounds) == n + 1:
                return cls(np.stack(levels))
            middles = [(a + b + 1) // 2 for a, b in pairwise(bounds)]
            bounds = sorted({*bounds, *middles})

    @property
    def depth(self) -> int:
        """Number of levels, root and elements included."""
        return int(self.levels.shape[0])

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.levels.shape[1])

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of folders on each level."""
        return tuple(int(width) for width in self.levels.max(1) + 1)

    def permuted(self, order: Any) -> Tree:
        """The tree of the axis rearranged as `axis[order]`."""
        order = np.asarray(order)
        if sorted(order.tolist()) != list(range(self.size)):
            raise InputError(f"tree: expected a permutation of 0 … {self.size - 1}")
        return Tree(self.levels[:, order], np.argsort(order)[self.order])

    def closeness(self) -> Floats:
        """[n, n]: the share of all elements in the smallest folder that holds both; 1/n on the diagonal."""
        share = np.ones((self.size, self.size))
        for row in self.levels[1:]:
            sizes = np.bincount(row) / self.size
            np.copyto(share, sizes[row][:, None], where=row[:, None] == row[None, :])
        return share

    def haar(self) -> Floats:
        """The Haar basis as columns [n, n]: for looking at; the transforms never build it."""
        basis: Floats = self.rotations.apply(np.eye(self.size)[None], back=True)[0]
        return basis

    @cached_property
    def folders(self) -> Folders:
        """The distinct folders, each once however many levels repeat it."""
        return folders_of(self.levels)

    @cached_property
    def rotations(self) -> Rotations:
        """The Haar transform as n − 1 plane rotations."""
        return rotations_of(self.folders, self.order)

    def plot(self) -> Figure:
        """The tree from its root, above, to its elements."""
        return draw("tree_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write to one .npz file."""
        return save_arrays(path, "tree", self.as_arrays("tree"), {})

    @classmethod
    def load(cls, path: str | Path) -> Tree:
        """Read what `save` wrote."""
        arrays, _ = load_arrays(path, "tree")
        with naming_file(path):
            return cls.from_arrays(arrays, "tree")

    def as_arrays(self, name: str) -> dict[str, Any]:
        return {f"{name}.levels": self.levels.astype(np.int32), f"{name}.order": self.order.astype(np.int32)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], name: str) -> Tree:
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
    n = levels.shape[1]
    if order.shape != (n,) or order.dtype.kind not in "iu" or sorted(order.tolist()) != list(range(n)):
        raise InputError(f"tree: expected the order to be a permutation of 0 … {n - 1}")
    for depth, row in enumerate(levels[:, order]):
        # Depth first: every folder is one run, so the number of runs is the number of folders.
        if np.count_nonzero(np.diff(row)) != row.max():
            raise InputError(f"tree: the order is not depth first, it leaves a folder of level {depth} and comes back")
    return order
