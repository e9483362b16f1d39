"""Types of arrays, and what differs between NumPy arrays and torch tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def is_torch(array: object) -> bool:
    """Tell whether `array` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def to_numpy(array: Any) -> Any:
    """Return `array` as a NumPy array, copied to the CPU if it is on another device."""
    return array.detach().cpu().numpy() if is_torch(array) else array
