"""The Haar transform of an array along the trees of its axes: `forward` and `inverse`.

The basis and its n − 1 plane rotations are defined in `haar_rotations`; this module applies them along one or more axes
with O(n) work per axis, by numba kernels, by Triton on a GPU, or by NumPy and torch operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from attngeo.arrays import AnyArray, is_torch
from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization import kernels
from attngeo.organization.checks import checked_axis
from attngeo.organization.haar_rotations import Rotations
from attngeo.organization.tree import Tree


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
