"""The Haar transform along the trees of an array's axes: `forward` and `inverse`.

A folder with children c₁, c₂, …, c_m (largest first) has m − 1 Haar functions. The i-th is constant and positive on
c_i, constant and negative on the union R of the later children, zero elsewhere, with mean 0 and norm 1. For a function
f and a folder F let f_F = ⟨f, 1_F/√|F|⟩. From u = f on c_i and v = f on R one plane rotation gives both the Haar
coefficient and the value on the union:

    coefficient = (√|R| u − √|c_i| v) / √(|c_i| + |R|)
    union       = (√|c_i| u + √|R| v) / √(|c_i| + |R|)

So n − 1 rotations transform an axis: O(n) work, no dense basis, orthogonal by construction, and the inverse applies the
opposite rotations in reverse order. They are applied by numba kernels, by Triton on a GPU, or by NumPy and torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attngeo.arrays import AnyArray, Floats, Ints, is_torch
from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization import kernels
from attngeo.organization.checks import checked_axis

if TYPE_CHECKING:
    from attngeo.organization.tree import Folders, Tree

BLOCK = 1 << 24  # numbers rotated at a time, which bounds the memory of the gathered pairs


def forward(array: AnyArray, trees: Mapping[int, Tree], *, overwrite: bool = False) -> Any:
    """Return the Haar coefficients of `array` along the axes of `trees`, with its shape, library and precision.

    Index 0 of an axis is the constant function.

    overwrite: a NumPy array may be overwritten, which saves the memory of another one

    >>> forward(np.array([1.0, 3.0, 4.0, 4.0]), {0: Tree.dyadic(4)}).round(6)
    array([6.      , 2.      , 1.414214, 0.      ])
    """
    return _transform(array, trees, False, overwrite)


def inverse(coefficients: AnyArray, trees: Mapping[int, Tree]) -> Any:
    """Return the array with these Haar coefficients along the axes of `trees`."""
    return _transform(coefficients, trees, True, False)


def _transform(array: AnyArray, trees: Mapping[int, Tree], inverse: bool, overwrite: bool) -> Any:
    shape = tuple(array.shape)
    by_axis = {checked_axis(axis, len(shape)): tree for axis, tree in trees.items()}
    for axis, tree in sorted(by_axis.items(), reverse=True):
        if shape[axis] != tree.size:
            raise InputError(f"tree of axis {axis}: has {tree.size} elements, the array has {shape[axis]} there")
        flat = array.reshape(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
        array = _along_middle(flat, tree.rotations, inverse, overwrite).reshape(shape)
        overwrite = True  # the result of the first axis belongs to nobody else
    return array


def _along_middle(flat: AnyArray, rotations: Rotations, inverse: bool, overwrite: bool) -> Any:
    """Return the transform of `flat` [outer, n, inner] along its middle axis."""
    if is_torch(flat):
        if flat.is_cuda and (gpu := kernels.gpu()) is not None:
            return gpu.rotated(flat, *rotations.steps(inverse, np.float64))
        return rotations.apply(flat, inverse)
    if (jit := kernels.cpu()) is None:
        return rotations.apply(flat, inverse)
    flat = np.ascontiguousarray(flat)
    out = flat if overwrite else np.empty_like(flat)
    steps = rotations.steps(inverse, flat.dtype)
    outer, n, inner = flat.shape
    blocks = -(-outer * inner // jit.block_width(n))
    threads.spread(lambda lo, hi: jit.rotate(flat, out, steps, lo, hi), blocks, cost=4.0 * flat.size)
    return out


@dataclass(frozen=True)
class Rotations:
    """n − 1 rotations in an order that works from the leaves up.

    A rotation acts on two of n slots. Afterwards slot `first` holds the Haar coefficient and is final; slot `second`
    holds the value on the union.
    """

    first: Ints  # [n − 1]
    second: Ints  # [n − 1]
    cosine: Floats  # [n − 1] √(|R| / (|c_i| + |R|))
    sine: Floats  # [n − 1] √(|c_i| / (|c_i| + |R|))
    slot: Ints  # [n] slot that holds the coefficient of each column of the basis
    share: Floats  # [n] size of each column's support as a share of the axis

    @cached_property
    def rounds(self) -> tuple[Ints, ...]:
        """Return the rotations grouped into rounds; the rotations of one round act on different slots."""
        ready = [0] * len(self.slot)
        rounds = []
        for p, q in zip(self.first.tolist(), self.second.tolist(), strict=True):
            rounds.append(max(ready[p], ready[q]))
            ready[p] = ready[q] = rounds[-1] + 1
        order = np.argsort(rounds, kind="stable")
        return tuple(np.split(order, np.cumsum(np.bincount(np.asarray(rounds, np.int64)))[:-1])) if rounds else ()

    def steps(self, inverse: bool, dtype: DTypeLike) -> tuple[Ints, Ints, NDArray[Any], NDArray[Any], Ints]:
        """Return (first, second, cosine, sine, source) for the kernels, cosines and sines with the given dtype.

        Rotate the rows (first[k], second[k]) in order; row i of the result is then row source[i]. The inverse takes
        rows in the order of the columns of the basis and rotates by the opposite angles in reverse order.
        """
        cosine, sine = self.cosine.astype(dtype), self.sine.astype(dtype)
        if not inverse:
            return self.first, self.second, cosine, sine, self.slot
        column = np.argsort(self.slot)
        return column[self.first[::-1]], column[self.second[::-1]], cosine[::-1].copy(), -sine[::-1], column

    def apply(self, array: AnyArray, inverse: bool = False) -> Any:
        """Return the transform of `array` [outer, n, inner] along its middle axis, or the inverse transform.

        This is the path without compiled kernels, for NumPy and torch.
        """
        out = array.clone() if is_torch(array) else array.copy()
        outer, n, inner = array.shape
        rows = max(1, BLOCK // (n * inner))
        columns = max(1, BLOCK // n)
        for i in range(0, outer, rows):
            for j in range(0, inner, columns):
                self._rotate(out[i : i + rows, :, j : j + columns], inverse)
        return out

    def _rotate(self, part: Any, inverse: bool) -> None:
        """Apply all rotations to `part` [outer, n, inner] in place, those of one round together."""
        if inverse:
            part[:, self.slot] = part.clone() if is_torch(part) else part.copy()
        for chosen in reversed(self.rounds) if inverse else self.rounds:
            p, q = self.first[chosen], self.second[chosen]
            c, s = _like(self.cosine[chosen, None], part), _like(self.sine[chosen, None], part)
            u, v = part[:, p], part[:, q]
            part[:, p] = c * u + s * v if inverse else c * u - s * v
            part[:, q] = c * v - s * u if inverse else c * v + s * u
        if not inverse:
            part[...] = part[:, self.slot]


def rotations_of(folders: Folders, order: Ints) -> Rotations:
    """Return the rotations of a tree, given its folders and a depth-first order of its elements [n].

    The columns of the basis are numbered by level, then by folder label, then by child, largest child first. Of two
    children of equal size the one later in `order` comes first.
    """
    n = len(order)
    counts = np.diff(folders.start)
    parent = np.repeat(np.arange(folders.count), counts)  # of each entry of folders.child
    position = np.argsort(order).tolist()  # of each folder's first element in `order`
    starts, listed = folders.start.tolist(), folders.child.tolist()
    for folder in range(n, folders.count):
        position.append(min(position[c] for c in listed[starts[folder] : starts[folder + 1]]))
    sizes = folders.size[folders.child]
    child = folders.child[np.lexsort((-np.asarray(position)[folders.child], -sizes, parent))]
    sizes = folders.size[child]
    slots, listed = list(range(n)), child.tolist()
    for folder in range(n, folders.count):
        slots.append(slots[listed[starts[folder + 1] - 1]])  # a folder takes the slot of its smallest child
    slot = np.asarray(slots, np.int64)
    rank = np.arange(len(child)) - folders.start[parent]  # i − 1 for the i-th child
    before = np.cumsum(sizes) - sizes
    both = folders.size[parent] - (before - before[folders.start[parent]])  # |c_i| + |R|
    keeps = np.flatnonzero(rank < counts[parent] - 1)  # every child but the last gives a column
    in_order = keeps[np.lexsort((-rank[keeps], parent[keeps]))]  # smallest children first: R is complete when needed
    by_column = keeps[np.lexsort((rank[keeps], folders.label[parent[keeps]], folders.bottom[parent[keeps]]))]
    return Rotations(
        first=slot[child[in_order]],
        second=slot[parent[in_order]],
        cosine=np.sqrt((both - sizes)[in_order] / both[in_order]),
        sine=np.sqrt(sizes[in_order] / both[in_order]),
        slot=np.concatenate([slot[-1:], slot[child[by_column]]]),
        share=np.concatenate([[1.0], both[by_column] / n]),
    )


def _like(values: Floats, part: AnyArray) -> Any:
    """Return `values` as the same kind of array as `part`: library, precision and device."""
    if is_torch(part):
        import torch

        return torch.as_tensor(values, dtype=part.dtype, device=part.device)
    return values.astype(part.dtype)
