"""Compiled loops for the CPU (numba) and the GPU (triton), and the choice between them."""
