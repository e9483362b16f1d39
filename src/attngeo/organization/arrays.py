"""What may be organised: finite matrices and 3-tensors, numpy or torch, checked once at the door."""

from __future__ import annotations

import sys
import threading
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attngeo.errors import InputError
from attngeo.organization import threads

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def is_torch(array: object) -> bool:
    """Whether `array` is a torch tensor, told without importing torch: nobody holds one unless it is loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def at_home(array: Any) -> Any:
    """`array` as numpy, fetched from a device where it lies on one."""
    return array.detach().cpu().numpy() if is_torch(array) else array


def real(array: Any, what: str = "array") -> Any:
    """`array` as float32 or float64, numpy or torch as it came."""
    if is_torch(array):
        if not array.is_floating_point():
            return array.double()
        return array.float() if array.element_size() < 4 else array
    array = np.asarray(array)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{what}: expected real numbers, got {array.dtype}")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    return array


def checked(array: Any, what: str = "array", dimensions: tuple[int, ...] = (2, 3)) -> Any:
    """`array` as `real` makes it; InputError where it cannot be organised."""
    array = real(array, what)
    shape = tuple(array.shape)
    if len(shape) not in dimensions:
        wanted = " or ".join(f"{d}-D" for d in dimensions)
        raise InputError(f"{what}: expected {wanted}, got {len(shape)}-D of shape {shape}")
    if 0 in shape:
        raise InputError(f"{what}: axis {shape.index(0)} is empty (shape {shape})")
    # A sum is NaN or Inf wherever an entry is, and costs no second array; overflow alone needs the longer look.
    with np.errstate(all="ignore"):
        finite = np.isfinite(float(array.sum())) or bool((abs(array) < np.inf).all())
    if not finite:
        raise InputError(f"{what}: holds NaN or Inf, expected finite numbers (shape {shape})")
    return array


def checked_affinity(affinity: Any, what: str = "affinity") -> Floats:
    """A square, symmetric, finite, non-negative float64 matrix, or InputError."""
    matrix: Floats = np.asarray(checked(at_home(affinity), what, (2,)), np.float64)
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{what}: expected a square matrix, got shape {matrix.shape}")
    if matrix.min() < 0:
        raise InputError(f"{what}: expected no negative entries, the smallest is {matrix.min():.3g}")
    if np.abs(matrix - matrix.T).max() > 1e-8 * matrix.max():
        raise InputError(f"{what}: expected a symmetric matrix, entries differ from their mirror images")
    return matrix


def checked_axis(axis: int, dimensions: int) -> int:
    """`axis` counted from the front."""
    if not -dimensions <= axis < dimensions:
        raise InputError(f"axis {axis}: the array has axes 0 to {dimensions - 1}")
    return axis % dimensions


def slices_first(array: Any, axis: int) -> Any:
    """The slices of `axis` as the first axis of a contiguous array; no copy where memory already lies so."""
    if is_torch(array):
        return array.movedim(axis, 0).contiguous()  # [n, ...]
    moved = np.moveaxis(array, axis, 0)  # [n, ...]
    if moved.flags.c_contiguous:
        return moved
    copy = np.empty(moved.shape, moved.dtype)
    n = len(moved)
    if array.flags.c_contiguous and axis % array.ndim == array.ndim - 1 and (jit := threads.jit()):
        flat, target = array.reshape(-1, n), copy.reshape(n, -1)
        threads.spread(lambda lo, hi: jit.transpose(flat, target, lo, hi), n, cost=moved.size)
    else:
        threads.spread(lambda lo, hi: np.copyto(copy[lo:hi], moved[lo:hi]), n, cost=moved.size)
    return copy


class Scratch:
    """Memory used over and over: fresh pages of a large array cost more than what is computed on them."""

    def __init__(self) -> None:
        self._shared = _Buffer()
        self._of_thread = threading.local()

    def take(self, shape: tuple[int, ...], kind: Any = np.float64) -> Any:
        """An array of any content; what was taken before is overwritten."""
        return self._shared.take(shape, kind)

    def mine(self, shape: tuple[int, ...]) -> Floats:
        """The same, for the calling thread alone."""
        if not hasattr(self._of_thread, "buffer"):
            self._of_thread.buffer = _Buffer()
        array: Floats = self._of_thread.buffer.take(shape, np.float64)
        return array


class _Buffer:
    def __init__(self) -> None:
        self._numbers: Floats = np.empty(0)

    def take(self, shape: tuple[int, ...], kind: Any) -> Any:
        size = prod(shape)
        doubles = -(-size * np.dtype(kind).itemsize // 8)
        if doubles > self._numbers.size:
            self._numbers = np.empty(0)  # the old one goes before the new one comes
            self._numbers = np.empty(doubles)
        return self._numbers[:doubles].view(kind)[:size].reshape(shape)
