"""What a checkpoint is to the rest of attngeo: named tensors, read as float32, only when asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies and how it is stored; nothing of it has been read yet."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # the file's own word: "F32", "BF16", "F8_E4M3", "Q4_1", …
    file: str  # for error messages: the file's name as the user would recognise it


@dataclass(frozen=True)
class ReadRequest:
    """A read to come: a whole tensor (`rows` None) or spans [start, stop) of its first axis, in order."""

    name: str
    rows: tuple[tuple[int, int], ...] | None = None


class Checkpoint(ABC):
    """Named tensors of one model, wherever they are kept."""

    ref: str  # what the user typed, or the class name of a module in memory
    config: Mapping[str, Any] | None  # config.json as stored; None where there is none
    tensors: Mapping[str, TensorInfo]
    remote: bool = False  # reading costs a request: optional extras are left out by default

    @abstractmethod
    def read(self, request: ReadRequest) -> FloatArray:
        """Float32 values of `request`, finite or SourceError; C-contiguous, owned by the caller."""

    def plan_reads(self, requests: Sequence[ReadRequest]) -> None:
        """All reads about to happen, in order: a chance to join requests or read ahead. Optional."""
        return None

    def close(self) -> None:
        """Release files and connections; reading afterwards is an error."""
        return None

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
