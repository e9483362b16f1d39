"""Choose the few rows of a batch or of a data set on which the attention logits are measured during training."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attngeo.live.frozen import preserved_random_state

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
Batch: TypeAlias = Tensor | Mapping[str, Any] | Sequence[Any]  # tensors, on their own or in mappings and sequences


def first_rows(batch: Any, count: int, device: torch.device) -> Any:
    """Return `batch` (a tensor, or tensors in mappings and sequences) with only its first rows, on `device`."""
    if isinstance(batch, Tensor):
        return (batch[:count] if batch.dim() else batch).to(device)
    if isinstance(batch, Mapping):
        return {name: first_rows(part, count, device) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [first_rows(part, count, device) for part in batch]
    return batch


def first_rows_of_loader(loader: DataLoader | None, count: int) -> Any:
    """Return the first items of the loader's data set, collated; None if the data set has no single items.

    The random numbers that training draws afterwards are the same as without this call.
    """
    dataset: Any = getattr(loader, "dataset", None)
    collate: Any = getattr(loader, "collate_fn", None)
    if collate is None or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return None
    collator = getattr(collate, "data_collator", collate)  # Trainer wraps the collator it was given
    with preserved_random_state(), _preserved_generators(dataset, collator):
        return collate([dataset[index] for index in range(min(count, len(dataset)))])


@contextmanager
def _preserved_generators(*owners: Any) -> Iterator[None]:
    """Let a data set and a collator that have random generators of their own draw from copies of them."""
    # A collator of transformers makes its generator when it is first called.
    generators = [
        (owner, name, value)
        for owner in owners
        for name, value in getattr(owner, "__dict__", {}).items()
        if isinstance(value, _GENERATORS) or (name == "generator" and value is None)
    ]
    try:
        for owner, name, value in generators:
            setattr(owner, name, copy.deepcopy(value))
        yield
    finally:
        for owner, name, value in generators:
            setattr(owner, name, value)
