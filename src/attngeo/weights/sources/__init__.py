"""Checkpoints wherever they are kept: named tensors, read as float32 when asked for."""
