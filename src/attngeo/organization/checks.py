"""Checks of input: matrices and 3-tensors (NumPy or torch), affinities, axis numbers; results compared by value."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attngeo.arguments import is_whole
from attngeo.arrays import ArrayInput, Floats, is_torch, to_numpy
from attngeo.errors import InputError

SMALLEST = 1e-140  # of largest values: the squares of numbers 14 digits smaller are then still above the least float64


def as_floats(array: ArrayInput, what: str = "array") -> Any:
    """Return `array` as float32 or float64, NumPy or torch as given; lists of numbers become NumPy arrays.

    what: name of the array in error messages
    """
    if is_torch(array):
        array = array.detach()
        if not array.is_floating_point():
            return array.double()
        return array.float() if array.element_size() < 4 else array
    try:
        values = np.asarray(array)
    except ValueError:  # rows of different lengths
        raise InputError(f"{what}: expected an array of numbers, got nested lists of different lengths") from None
    if values.dtype.kind not in "fiub":
        raise InputError(f"{what}: expected real numbers, got {_kind(array, values)}")
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float32 if values.dtype == np.float16 else np.float64)
    return values


def _kind(array: object, values: NDArray[Any]) -> str:
    """Return in words what was given instead of numbers: "list of NetworkTensor", "str", "complex128"."""
    if isinstance(array, list | tuple) and values.size and values.dtype.kind not in "cV":
        return f"{type(array).__name__} of {type(values.item(0)).__name__}"
    return type(array).__name__ if values.ndim == 0 else str(values.dtype)


def checked(array: ArrayInput, what: str = "array", dimensions: tuple[int, ...] = (2, 3)) -> Any:
    """Return `as_floats(array)` if it has allowed dimensions, no empty axis and only finite numbers of a usual size.

    >>> checked([[1, 2], [3, 4]]).dtype
    dtype('float64')
    """
    values = as_floats(array, what)
    shape = tuple(values.shape)
    if len(shape) not in dimensions:
        wanted = " or ".join(f"{d}-D" for d in dimensions)
        raise InputError(f"{what}: expected {wanted}, got {len(shape)}-D of shape {shape}")
    if 0 in shape:
        raise InputError(f"{what}: axis {shape.index(0)} is empty (shape {shape})")
    # The sum is NaN or Inf if an entry is, and needs no second array. A finite array whose sum overflows takes the
    # slower test.
    with np.errstate(all="ignore"):
        finite = np.isfinite(float(values.sum())) or bool((abs(values) < np.inf).all())
    if not finite:
        raise InputError(f"{what}: contains NaN or Inf, expected finite numbers (shape {shape})")
    _check_size(values, what)
    return values


def _check_size(values: Any, what: str) -> None:
    """Raise InputError unless sums of squares of the numbers neither overflow nor underflow in float64."""
    if values.itemsize < 8:  # squares of float32 are computed in float64, which holds all of them
        return
    largest = _largest(values)
    if largest and not SMALLEST <= largest <= 1 / SMALLEST:
        raise InputError(
            f"{what}: the largest absolute value is {largest:.3g}, expected 0 or one from {SMALLEST:g} to "
            f"{1 / SMALLEST:g}, whose squares float64 can hold; multiply by a constant first, which changes no tree"
        )


def checked_for_haar(array: ArrayInput, what: str) -> Any:
    """Return `checked(array)` if Haar coefficients of it, in its own precision, cannot overflow."""
    values = checked(array, what)
    if values.itemsize < 8:
        largest, most = _largest(values), float(np.finfo(np.float32).max) / math.prod(values.shape) ** 0.5
        if largest > most:
            raise InputError(
                f"{what}: the largest absolute value is {largest:.3g}, expected at most {most:.3g}, above which Haar "
                "coefficients overflow float32; pass logits before the mask is added, or float64"
            )
    return values


def _largest(values: Any) -> float:
    """Return the largest absolute value."""
    return max(float(values.max()), -float(values.min()))


def checked_affinity(affinity: ArrayInput) -> Floats:
    """Return `affinity` as a float64 NumPy matrix; raise InputError unless it is square, symmetric and non-negative."""
    matrix = checked_square(affinity, "affinity")
    difference = np.abs(matrix - matrix.T).max()
    if difference > 1e-8 * matrix.max():
        raise InputError(f"affinity: expected a symmetric matrix, entries (i, j) and (j, i) differ by {difference:.3g}")
    return matrix


def checked_square(array: ArrayInput, what: str) -> Floats:
    """Return `array` as a float64 NumPy matrix; raise InputError unless it is square and non-negative."""
    matrix: Floats = np.asarray(checked(to_numpy(array), what, (2,)), np.float64)
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{what}: expected a square matrix, got shape {matrix.shape}")
    if matrix.min() < 0:
        raise InputError(f"{what}: expected no negative entries, the smallest is {matrix.min():.3g}")
    return matrix


def checked_axis(axis: int, dimensions: int) -> int:
    """Return `axis` as a number from 0; raise InputError if the array has no such axis."""
    if not is_whole(axis, -dimensions, dimensions - 1):
        raise InputError(f"axis {axis!r}: the array has axes 0 to {dimensions - 1}")
    return int(axis) % dimensions


class ByValue:
    """Base of dataclasses that hold arrays: two of them are equal if all their fields are, where NaN equals NaN."""

    def __eq__(self, other: object) -> bool:
        return _same(self, other) if type(other) is type(self) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def _same(one: Any, other: Any) -> bool:
    if is_dataclass(one) and type(one) is type(other):
        return all(_same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    one, other = to_numpy(one), to_numpy(other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    return bool(one == other) or (one != one and other != other)
