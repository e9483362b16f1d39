"""Choose the few rows of a batch or of a data set on which the attention logits are measured during training."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from attngeo.live.frozen import preserved_random_state

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

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
    with preserved_random_state(), _preserved_generator(collate):
        return collate([dataset[index] for index in range(min(count, len(dataset)))])


@contextmanager
def _preserved_generator(collate: Any) -> Iterator[None]:
    """Let a collator with its own random generator draw its masks from a copy of that generator."""
    collator = getattr(collate, "data_collator", collate)  # Trainer wraps the collator it was given
    if not hasattr(collator, "generator"):
        yield
        return
    generator = collator.generator
    try:
        collator.generator = copy.deepcopy(generator)
        yield
    finally:
        collator.generator = generator
