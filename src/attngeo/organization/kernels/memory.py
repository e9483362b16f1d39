"""Memory for the kernels: contiguous slices of an axis, and buffers that are used again."""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np

from attngeo.arrays import Floats, is_torch
from attngeo.io import threads
from attngeo.organization.kernels import dispatch


def slices_first(array: Any, axis: int) -> Any:
    """Return a contiguous array whose first axis is `axis`; no copy where the memory already has that order."""
    if is_torch(array):
        return array.movedim(axis, 0).contiguous()  # [n, ...]
    moved = np.moveaxis(array, axis, 0)  # [n, ...]
    if moved.flags.c_contiguous:
        return moved
    copy = np.empty(moved.shape, moved.dtype)
    n = len(moved)
    if array.flags.c_contiguous and axis % array.ndim == array.ndim - 1 and (jit := dispatch.numba_kernels()):
        flat, target = array.reshape(-1, n), copy.reshape(n, -1)
        threads.spread(lambda lo, hi: jit.transpose(flat, target, lo, hi), n, cost=moved.size)
    else:
        threads.spread(lambda lo, hi: np.copyto(copy[lo:hi], moved[lo:hi]), n, cost=moved.size)
    return copy


class Scratch:
    """Buffers that are used again, because fresh pages of a large array cost more than the work done on them."""

    def __init__(self) -> None:
        self._shared = _Buffer()
        self._of_thread = threading.local()

    def take(self, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
        """Return an uninitialised array; it overwrites the one taken before."""
        return self._shared.take(shape, dtype)

    def mine(self, shape: tuple[int, ...]) -> Floats:
        """Return an uninitialised array that belongs to the calling thread."""
        if not hasattr(self._of_thread, "buffer"):
            self._of_thread.buffer = _Buffer()
        array: Floats = self._of_thread.buffer.take(shape, np.float64)
        return array


class _Buffer:
    def __init__(self) -> None:
        self._numbers: Floats = np.empty(0)

    def take(self, shape: tuple[int, ...], dtype: Any) -> Any:
        size = prod(shape)
        doubles = -(-size * np.dtype(dtype).itemsize // 8)
        if doubles > self._numbers.size:
            self._numbers = np.empty(0)  # free the old buffer before the new one is allocated
            self._numbers = np.empty(doubles)
        return self._numbers[:doubles].view(dtype)[:size].reshape(shape)
