"""Compiled kernels for the CPU (numba) and the GPU (Triton), and the choice between them.

    dispatch             which kernels are available: numba_kernels, triton_kernels
    memory               contiguous slices of an axis (slices_first) and reusable buffers (Scratch)
    distances_numba      sums of minima and l1 distances between points, CPU
    distances_triton     l1 distances between points, GPU
    folders_numba        sums of slices over folders and their sums of minima, for the tree distance, CPU
    haar_numba           plane rotations of the Haar transform, CPU
    haar_triton          the same, GPU
    arrays_numba         transpose, Σ|x|, weighted means of rows, CPU
    simd_llvm            the vector operations inside the numba loops
    numba_compile        the decorators that compile the numba loops

Other packages import `dispatch` and `memory` only. The kernel modules need numba or Triton, so nothing imports them
before `dispatch` has found the compiler.
"""

from attngeo.organization.kernels.dispatch import numba_kernels, triton_kernels
from attngeo.organization.kernels.memory import Scratch, slices_first

__all__ = ["Scratch", "numba_kernels", "slices_first", "triton_kernels"]
