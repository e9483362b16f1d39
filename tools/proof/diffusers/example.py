"""`Example`: a tiny config of a diffusers class, and inputs for its forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Example:
    """How to build one small model of a class, and how to run it."""

    config: Mapping[str, Any]  # arguments of the class
    inputs: Callable[[], dict[str, Any]]  # makes the arguments of the forward pass
    method: str = "forward"  # the method to run
    note: str = ""  # what is particular about this example


@dataclass
class Examples:
    """The examples of all classes, by class name; a class may have several."""

    by_class: dict[str, list[Example]] = field(default_factory=dict)

    def add(
        self, names: str, config: Mapping[str, Any], inputs: Callable[[], dict[str, Any]], method: str = "forward"
    ) -> None:
        """Add one example for each of the classes, names separated by spaces."""
        for name in names.split():
            self.by_class.setdefault(name, []).append(Example(config, inputs, method))


def x(*shape: int) -> Tensor:
    """Return random numbers of this shape."""
    return torch.randn(*shape)


def ids(below: int, *shape: int) -> Tensor:
    """Return random whole numbers from 0 to `below` − 1."""
    return torch.randint(below, shape)


def ones(*shape: int) -> Tensor:
    """Return a mask that keeps every token."""
    return torch.ones(*shape, dtype=torch.bool)


def grid(tokens: int, axes: int = 3) -> Tensor:
    """Return positions [tokens, axes]."""
    return torch.arange(tokens)[:, None].float().repeat(1, axes)


def times(batch: int = 2) -> Tensor:
    """Return one time step per item of the batch."""
    return torch.linspace(100.0, 900.0, batch)
