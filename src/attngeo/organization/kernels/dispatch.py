"""Select the compiled kernels: numba on the CPU, Triton on a GPU, or none where the compiler is not installed.

Callers look up `dispatch.numba_kernels()` and `dispatch.triton_kernels()` on each use, so that tests can replace them.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import NamedTuple


class NumbaKernels(NamedTuple):
    """The CPU kernels, one module per kind of work."""

    arrays: ModuleType
    distances: ModuleType
    folders: ModuleType
    haar: ModuleType


class TritonKernels(NamedTuple):
    """The GPU kernels, one module per kind of work."""

    distances: ModuleType
    haar: ModuleType


@lru_cache(maxsize=1)
def numba_kernels() -> NumbaKernels | None:
    """Return the CPU kernels, or None if numba is not installed; callers then use NumPy and SciPy."""
    try:
        from attngeo.organization.kernels import arrays_numba, distances_numba, folders_numba, haar_numba
    except ImportError:
        return None
    return NumbaKernels(arrays_numba, distances_numba, folders_numba, haar_numba)


@lru_cache(maxsize=1)
def triton_kernels() -> TritonKernels | None:
    """Return the GPU kernels, or None if Triton is not installed; callers then use torch's own operations."""
    try:
        from attngeo.organization.kernels import distances_triton, haar_triton
    except ImportError:
        return None
    return TritonKernels(distances_triton, haar_triton)
