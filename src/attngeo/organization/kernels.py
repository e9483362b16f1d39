"""The compiled kernels that this machine has: numba loops on the CPU, Triton on a GPU, or none of them.

Callers look up `kernels.cpu()` and `kernels.gpu()` on each use, and do without where the answer is None.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType


@lru_cache(maxsize=1)
def cpu() -> ModuleType | None:
    """Return the module `cpu_kernels`, or None if numba is not installed; callers then use NumPy and SciPy."""
    try:
        from attngeo.organization import cpu_kernels
    except ImportError:
        return None
    return cpu_kernels


@lru_cache(maxsize=1)
def gpu() -> ModuleType | None:
    """Return the module `gpu_kernels`, or None if Triton is not installed; callers then use torch's own operations."""
    try:
        from attngeo.organization import gpu_kernels
    except ImportError:
        return None
    return gpu_kernels
