"""Memory for the kernels: contiguous slices along an axis, and buffers that are reused."""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attngeo.arrays import AnyArray, Floats, is_torch
from attngeo.io import threads
from attngeo.organization.kernels import dispatch


def slices_first(array: AnyArray, axis: int) -> Any:
    """Return a contiguous array whose first axis is `axis`, without a copy if the memory already has that order."""
    if is_torch(array):
        return array.movedim(axis, 0).contiguous()  # [n, ...]
    moved = np.moveaxis(array, axis, 0)  # [n, ...]
    if moved.flags.c_contiguous:
        return moved
    copy = np.empty(moved.shape, moved.dtype)
    n = len(moved)
    if array.flags.c_contiguous and axis % array.ndim == array.ndim - 1 and (jit := dispatch.numba_kernels()):
        flat, target = array.reshape(-1, n), copy.reshape(n, -1)
        threads.spread(lambda lo, hi: jit.arrays.transpose(flat, target, lo, hi), n, cost=moved.size)
    else:
        threads.spread(lambda lo, hi: np.copyto(copy[lo:hi], moved[lo:hi]), n, cost=moved.size)
    return copy


class Scratch:
    """Reusable buffers: first writes to freshly allocated pages cost more than the work done on a large array."""

    def __init__(self) -> None:
        self._shared = _Buffer()
        self._of_thread = threading.local()

    def take(self, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Return an uninitialised array; it shares its memory with the array that the previous call returned."""
        return self._shared.take(shape, dtype)

    def take_per_thread(self, shape: tuple[int, ...]) -> Floats:
        """Return an uninitialised array that only the calling thread uses."""
        if not hasattr(self._of_thread, "buffer"):
            self._of_thread.buffer = _Buffer()
        array: Floats = self._of_thread.buffer.take(shape, np.float64)
        return array


class _Buffer:
    """One block of memory that grows to the largest array asked for."""

    def __init__(self) -> None:
        self._numbers: Floats = np.empty(0)

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        size = prod(shape)
        doubles = -(-size * np.dtype(dtype).itemsize // 8)
        if doubles > self._numbers.size:
            self._numbers = np.empty(0)  # free the old buffer before the new one is allocated
            self._numbers = np.empty(doubles)
        return self._numbers[:doubles].view(dtype)[:size].reshape(shape)
