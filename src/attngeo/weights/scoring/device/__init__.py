"""Scoring through torch, on a GPU: everything is computed in float64, for many forms at once.

open_device       a torch device by its name, or an error in one line
read_on_device    the layers of a checkpoint as tensors on it
BatchedScores     scores of many forms at once, by the same formulas as on the CPU
"""

from attngeo.weights.scoring.device.batched import BatchedScores
from attngeo.weights.scoring.device.reading import open_device, read_on_device

__all__ = ["BatchedScores", "open_device", "read_on_device"]
