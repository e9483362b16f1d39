"""The Haar transform of an array along the trees of its axes: `forward` and `inverse`.

The basis and its n − 1 plane rotations are defined in `trees/haar_rotations`; this module applies them along one or
more axes with O(n) work per axis, by numba kernels, by Triton on a GPU, or by NumPy and torch operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import AnyArray, is_torch
from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization.checks import checked_axis
from attngeo.organization.kernels import dispatch
from attngeo.organization.trees.haar_rotations import Rotations
from attngeo.organization.trees.tree import Tree


def forward(array: AnyArray, trees: Mapping[int, Tree], out: NDArray[Any] | None = None) -> Any:
    """Return the Haar coefficients of `array` along the axes of `trees`, with its shape, library and precision.

    Index 0 of an axis is the constant function. `out`, a NumPy array of the same shape, receives the result in its own
    precision.

    >>> forward(np.array([1.0, 3.0, 4.0, 4.0]), {0: Tree.dyadic(4)}).round(6)
    array([6.      , 2.      , 1.414214, 0.      ])
    """
    return _transform(array, trees, False, out)


def inverse(coefficients: AnyArray, trees: Mapping[int, Tree]) -> Any:
    """Return the array with these Haar coefficients along the axes of `trees`."""
    return _transform(coefficients, trees, True, None)


def _transform(array: AnyArray, trees: Mapping[int, Tree], inverse: bool, out: NDArray[Any] | None) -> Any:
    shape = tuple(array.shape)
    rotations: dict[int, Rotations] = {}
    parts: tuple[int, ...]
    for axis, tree in trees.items():
        axis = checked_axis(axis, len(shape))
        if shape[axis] != tree.size:
            raise InputError(f"tree of axis {axis}: has {tree.size} elements, the array has {shape[axis]} there")
        rotations[axis] = tree.rotations
    if is_torch(array) or (jit := dispatch.numba_kernels()) is None:
        result = array if out is None else _copied(array, out)
        for axis, turns in rotations.items():
            parts = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
            result = _without_numba(result.reshape(parts), turns, inverse).reshape(shape)
        return result
    result = np.empty(shape, array.dtype) if out is None else out
    source = np.ascontiguousarray(array)
    if {len(shape) - 1, len(shape) - 2} <= rotations.keys():
        # The last two axes together, while a slice is in cache.
        pair = rotations.pop(len(shape) - 1), rotations.pop(len(shape) - 2)
        parts = (prod(shape[:-2]), *shape[-2:])
        kernel = jit.haar.rotate_last_two_axes
        _run(kernel, source.reshape(parts), result.reshape(parts), pair, inverse, parts[0])
        source = result
    for axis, turns in rotations.items():
        outer, n, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
        if inner == 1:
            kernel, parts, total = jit.haar.rotate_last_axis, (outer, n), outer
        else:
            kernel, parts = jit.haar.rotate_middle_axis, (outer, n, inner)
            total = outer * -(-inner // jit.haar.block_width(n, inner))
        # After the first axis the result is transformed in place, so one allocation serves all axes.
        _run(kernel, source.reshape(parts), result.reshape(parts), (turns,), inverse, total)
        source = result
    return result if source is result else _copied(array, result)


def _run(
    kernel: Callable[..., object],
    flat: NDArray[Any],
    out: NDArray[Any],
    rotations: tuple[Rotations, ...],
    inverse: bool,
    total: int,
) -> None:
    """Run a numba kernel on spans of 0 … total in threads."""
    steps = [turns.steps(inverse, out.dtype) for turns in rotations]
    threads.spread(lambda lo, hi: kernel(flat, out, *steps, lo, hi), total, cost=4.0 * flat.size)


def _copied(array: AnyArray, out: NDArray[Any]) -> NDArray[Any]:
    out[...] = array
    return out


def _without_numba(flat: AnyArray, rotations: Rotations, inverse: bool) -> Any:
    """Return the transform of `flat` [outer, n, inner]: in one Triton launch on a GPU, round by round otherwise."""
    if is_torch(flat) and flat.is_cuda and (gpu := dispatch.triton_kernels()) is not None:
        *steps, source_rows = rotations.steps(inverse, np.float64)
        return gpu.haar.rotated(flat, *steps, source_rows[0])
    return rotations.apply(flat, inverse)
