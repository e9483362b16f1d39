"""Checkpoints in files, on the hub or in memory: named tensors, read as float32 on request.

open_checkpoint   a folder, a file, a hub id, a torch module or a state dict → Checkpoint
Checkpoint        its tensors, its config, and `read`
ReadRequest       a tensor, or rows of it, to read
TensorInfo        name, shape and storage type of a tensor
FloatArray        what `read` returns
SUFFIXES          the file names that hold weights, and their kind
unwrapped         a torch module without the wrappers that distribute or compile it
"""

from attngeo.weights.sources.checkpoint import Checkpoint, FloatArray, ReadRequest, TensorInfo
from attngeo.weights.sources.folder import SUFFIXES
from attngeo.weights.sources.memory import unwrapped
from attngeo.weights.sources.open import open_checkpoint

__all__ = [
    "SUFFIXES",
    "Checkpoint",
    "FloatArray",
    "ReadRequest",
    "TensorInfo",
    "open_checkpoint",
    "unwrapped",
]
