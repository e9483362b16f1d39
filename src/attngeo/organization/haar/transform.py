"""The Haar transform of an array along the trees of its axes: O(n) work per axis, never a dense basis."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from attngeo.arrays import is_torch
from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization.checks import checked_axis
from attngeo.organization.kernels import dispatch
from attngeo.organization.trees.rotations import Rotations
from attngeo.organization.trees.tree import Tree


def forward(array: Any, trees: Mapping[int, Tree], out: Any = None) -> Any:
    """Coefficients of `array` along the axes of `trees`, same shape, kind and precision; column 0 is the constant.

    `out`, a numpy array of the same shape, is written to instead of a new one, in its own precision.
    """
    return _along(array, trees, False, out)


def inverse(coefficients: Any, trees: Mapping[int, Tree]) -> Any:
    """The array whose coefficients along the axes of `trees` these are."""
    return _along(coefficients, trees, True, None)


def _along(array: Any, trees: Mapping[int, Tree], back: bool, out: Any) -> Any:
    shape = tuple(array.shape)
    turns: dict[int, Rotations] = {}
    parts: tuple[int, ...]
    for axis, tree in trees.items():
        axis = checked_axis(axis, len(shape))
        if shape[axis] != tree.size:
            raise InputError(f"tree of axis {axis}: has {tree.size} elements, the array has {shape[axis]} there")
        turns[axis] = tree.rotations
    if is_torch(array) or (jit := dispatch.numba_kernels()) is None:
        result = array if out is None else _copied(array, out)
        for axis, turn in turns.items():
            parts = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
            result = _rotated(result.reshape(parts), turn, back).reshape(shape)
        return result
    result = np.empty(shape, array.dtype) if out is None else out
    source = np.ascontiguousarray(array)
    if {len(shape) - 1, len(shape) - 2} <= turns.keys():
        # Both of the last axes while a slice is in cache.
        pair = turns.pop(len(shape) - 1), turns.pop(len(shape) - 2)
        parts = (prod(shape[:-2]), *shape[-2:])
        _compiled(jit.rotate_both, source.reshape(parts), result.reshape(parts), pair, back, parts[0])
        source = result
    for axis, turn in turns.items():
        outer, n, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
        if inner == 1:
            rotate, parts, total = jit.rotate, (outer, n), outer
        else:
            rotate, parts, total = jit.rotate_across, (outer, n, inner), outer * -(-inner // jit.block_width(n, inner))
        # What we made ourselves is overwritten: one allocation serves all axes.
        _compiled(rotate, source.reshape(parts), result.reshape(parts), (turn,), back, total)
        source = result
    return result if source is result else _copied(array, result)


def _compiled(rotate: Any, flat: Any, out: Any, turns: tuple[Rotations, ...], back: bool, total: int) -> None:
    steps = [turn.steps(back, out.dtype) for turn in turns]
    threads.spread(lambda lo, hi: rotate(flat, out, *steps, lo, hi), total, cost=4.0 * flat.size)


def _copied(array: Any, out: Any) -> Any:
    out[...] = array
    return out


def _rotated(flat: Any, turn: Rotations, back: bool) -> Any:
    """Transform `flat` [outer, n, inner] without numba: in one launch on a GPU, else round by round."""
    if is_torch(flat) and flat.is_cuda and (gpu := dispatch.triton_kernels()) is not None:
        *steps, found = turn.steps(back, np.float64)
        return gpu.rotated(flat, *steps, found[0])
    return turn.apply(flat, back)
