"""What may be organised: finite matrices and 3-tensors, numpy or torch, checked once at the door."""

from __future__ import annotations

from typing import Any

import numpy as np

from attngeo.arrays import Floats, is_torch, to_numpy
from attngeo.errors import InputError


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
    matrix: Floats = np.asarray(checked(to_numpy(affinity), what, (2,)), np.float64)
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
