"""Array types, and the few operations that differ between NumPy arrays and torch tensors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
AnyFloats = NDArray[np.floating[Any]]  # float32 or float64

# A NumPy array or a torch tensor of floats, for functions that return the kind of array they are given.
Array = TypeVar("Array", NDArray[np.floating[Any]], "Tensor")

# Strings, so that the definitions do not import torch.
AnyArray: TypeAlias = "NDArray[Any] | Tensor"  # either kind, for functions whose result is of one fixed kind
ArrayInput: TypeAlias = "np.typing.ArrayLike | Tensor"  # what a user may pass: also nested lists of numbers


def is_torch(array: object) -> TypeGuard[Tensor]:
    """Return whether `array` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def namespace(array: object) -> Any:
    """Return the module whose functions (`sqrt`, `where`, …) accept `array`: torch for a tensor, else numpy."""
    return sys.modules["torch"] if is_torch(array) else np


def to_numpy(array: Any) -> Any:
    """Return `array` as a NumPy array, copied to the CPU if it is on another device.

    Half precision becomes float32, because NumPy has no bfloat16.
    """
    if not is_torch(array):
        return array
    half = array.is_floating_point() and array.element_size() < 4
    return (array.float() if half else array).detach().cpu().numpy()


def empty(shape: tuple[int, ...], like: Array) -> Array:
    """Return an uninitialised array of `shape` with the dtype and the device of `like`."""
    if is_torch(like):
        return like.new_empty(shape)  # type: ignore[no-any-return]
    return np.empty(shape, like.dtype)
