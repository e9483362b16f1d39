"""The tensors that transformers saves of a live model, and the weights in memory that each of them is made from.

Some model types have other names in memory, other orders of the dimensions of a head, or queries, keys and values that
are saved as one tensor. What is known of layouts is known of saved models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from attngeo.weights.sources.memory import as_saved


@dataclass(frozen=True)
class SavedTensor:
    """One tensor as transformers saves it."""

    shape: tuple[int, ...]
    sources: tuple[str, ...]  # names of the weights in memory that are needed to make it
    converted: bool = False  # True: `as_saved` of the sources computes it; False: it is its one source


def saved_tensors(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, SavedTensor]:
    """Return the tensors that transformers saves of a model whose weights in memory have these names and shapes."""
    blank = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    names = {id(value): name for name, value in blank.items()}
    saved: dict[str, SavedTensor] = {}
    for name, value in as_saved(model, blank).items():
        if id(value) in names:  # a weight that is only renamed stays the same object
            saved[name] = SavedTensor(tuple(value.shape), (names[id(value)],))
    plain = {source for tensor in saved.values() for source in tensor.sources}
    converted: dict[str, list[str]] = {}  # by the module around the projections, which are joined within one module
    for name in blank:
        if name not in plain:
            converted.setdefault(name.rpartition(".")[0].rpartition(".")[0], []).append(name)
    for sources in converted.values():
        for name, value in as_saved(model, {source: blank[source] for source in sources}).items():
            saved[name] = SavedTensor(tuple(value.shape), tuple(sources), converted=True)
    return saved
