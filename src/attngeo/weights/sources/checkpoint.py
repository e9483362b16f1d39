"""What a checkpoint is: named tensors of one model, each read as float32 on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
RowSpans = tuple[tuple[int, int], ...]  # spans [start, stop) of the first axis of a tensor
Tensor = TypeVar("Tensor")


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape and storage type of a tensor whose values were not read yet."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as the file calls it: "F32", "BF16", "F8_E4M3", "Q4_1", …
    file: str  # name of the file for error messages, as the user would recognise it


@dataclass(frozen=True)
class ReadRequest:
    """A tensor to read: all of it (`rows` is None), or spans [start, stop) of its first axis in the order given."""

    name: str
    rows: RowSpans | None = None

    def shape_in(self, info: TensorInfo) -> tuple[int, ...]:
        """Return the shape of what is read of the tensor."""
        return info.shape if self.rows is None else (sum(b - a for a, b in self.rows), *info.shape[1:])


class Checkpoint(ABC):
    """Named tensors of one model, in files, on the hub or in memory. Opening one reads no weights."""

    ref: str  # what the user typed, or the class name of a module in memory
    config: Mapping[str, Any] | None  # config.json as stored; None if there is none
    tensors: Mapping[str, TensorInfo]
    remote: bool = False  # true if a read can cost a network request; optional tensors are then left out by default

    @abstractmethod
    def read(self, request: ReadRequest) -> FloatArray:
        """Return the values that `request` names, as a NumPy array with these properties:

        dtype    float32, whatever the storage type
        shape    that of the tensor; with `rows`, the spans are concatenated along the first axis
        values   all finite; NaN and infinities raise SourceError, which names the tensor and the position
        memory   C-contiguous and owned by the caller, who may change it

        A tensor that does not exist, and a storage type that holds no plain floating-point weights, raise SourceError.
        """

    def check_readable(self, name: str) -> None:
        """Raise SourceError if the tensor holds no plain floating-point weights; packed ones have another shape."""
        return None

    def plan_reads(self, requests: Sequence[ReadRequest]) -> None:
        """Announce all reads to come, in order, so that a remote checkpoint can join and prefetch them. Optional."""
        return None

    def stop(self) -> None:
        """End reads of other threads that wait for the network, with SourceError; only `close` may follow. Optional."""
        return None

    def close(self) -> None:
        """Release files and connections; nothing can be read afterwards."""
        return None

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- names

# Modules that hold one other module and add nothing to it: torch.compile, FSDP 1, activation checkpointing.
WRAPPER_WORDS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def without_wrappers(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return `tensors` under the names of the model without what compiles and distributes it.

    They keep their names where two would become one. The attribute under which a larger module keeps a model (`model.`
    in Lightning modules) stays: layouts are found by the ends of names. So does `module` inside a name: it is a prefix
    of DataParallel and DistributedDataParallel, but models use the word too.

    >>> dict(without_wrappers({"module._orig_mod.model.layers.0._orig_mod.q_proj.weight": 1, "a.module.w": 2}))
    {'model.layers.0.q_proj.weight': 1, 'a.module.w': 2}
    """
    renamed = {}
    for name, value in tensors.items():
        *path, leaf = name.split(".")
        words = [word for word in path if word not in WRAPPER_WORDS]
        while words and words[0] == "module":
            del words[0]
        renamed[".".join([*words, leaf])] = value
    return renamed if len(renamed) == len(tensors) else tensors


# ---- configs of diffusers
#
# They have no model type, but a `_class_name`. attngeo gives them the model type `diffusers:CLASS`, so that facts about
# the class are looked up as those about a transformers model type are.

PREFIX = "diffusers:"  # of the model types of diffusers models


def with_model_type(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of a diffusers model with its model type; any other config as it is.

    >>> with_model_type({"_class_name": "UNet2DModel"})["model_type"]
    'diffusers:UNet2DModel'
    """
    name = config.get("_class_name")
    if not isinstance(name, str) or "model_type" in config:
        return config
    return {**config, "model_type": PREFIX + name}


def diffusers_config(module: Any) -> Mapping[str, Any] | None:
    """Return the config of a diffusers model in memory, with its model type; None for any other module."""
    config = getattr(module, "config", None)
    known = any(kind.__module__.partition(".")[0] == "diffusers" for kind in type(module).__mro__)
    if not known or not isinstance(config, Mapping):
        return None
    # A class derived from a diffusers model is saved under its own name; so is this one.
    return with_model_type({**config, "_class_name": type(module).__name__})
