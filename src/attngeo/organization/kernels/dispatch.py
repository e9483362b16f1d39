"""Which compiled kernels are available: numba on the CPU, triton on a GPU, or neither.

Callers look the functions up through this module, so that tests can switch the kernels off.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType


@lru_cache(maxsize=1)
def numba_kernels() -> ModuleType | None:
    """Return the compiled CPU loops, or None where numba is missing and the NumPy paths are used."""
    try:
        from attngeo.organization.kernels import distances_numba
    except ImportError:
        return None
    return distances_numba


@lru_cache(maxsize=1)
def triton_kernels() -> ModuleType | None:
    """Return the GPU kernels, or None where triton is missing and torch's own operations are used."""
    try:
        from attngeo.organization.kernels import triton_gpu
    except ImportError:
        return None
    return triton_gpu
