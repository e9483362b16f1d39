"""Batches as a function of the step number and the seed, so that a run can continue at any step; what they predict.

Runs with the same seed see the same rows in the same order with the same masks, whatever their initialisation and
however many processes share a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from attngeo.errors import InputError
from attngeo.training.data.masking import MaskedObjective
from attngeo.training.data.tokens import Part, Tokens

_BLOCK = 32  # steps prepared at a time, so that the launch cost of the small masking kernels is paid once for all
_HELD_OUT_SEED = 20_250_211


@dataclass(frozen=True)
class CausalObjective:
    """Predict every token from the tokens before it."""

    def predicted(self, length: int) -> int:
        """Return length − 1, the number of positions to predict in a row: nothing is predicted at the last one."""
        return length - 1

    def prepare(self, ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return `ids` as they are, the positions 0 … length − 2 and the token after each; nothing is drawn."""
        steps, rows, length = ids.shape
        positions = torch.arange(length - 1, device=ids.device).expand(steps, rows, -1)  # [steps, rows, length − 1]
        return ids, positions, ids[..., 1:]


# Chooses which positions of a row are predicted and what the model reads.
Objective: TypeAlias = MaskedObjective | CausalObjective


@dataclass(frozen=True)
class Batch:
    """The rows of one step."""

    ids: Tensor  # [rows, length], what the model reads
    positions: Tensor  # [n], positions to predict, within the flattened rows
    targets: Tensor  # [n], the token ids that are right there


class Rows:
    """A token file as rows of equal length, in the memory of the device, 16 bits per token."""

    def __init__(self, tokens: Tokens, part: Part, length: int, device: torch.device, batch: int) -> None:
        array = tokens.array(part)  # [tokens]
        file = f"{tokens.folder}/{part}.bin"
        self.count = len(array) // length
        if part == "train" and self.count < batch:
            raise InputError(f"{file}: {len(array)} tokens, fewer than the {batch} rows of {length} of one batch")
        if part == "valid" and not self.count:
            raise InputError(f"{file}: {len(array)} tokens, fewer than one row of {length}; "
                             "name more held-out text with valid = [...]")  # fmt: skip
        # uint16 viewed as int16, because torch has no arithmetic for uint16
        whole = np.array(array[: self.count * length]).view(np.int16)
        self.values = torch.from_numpy(whole).view(self.count, length).to(device)  # [rows, length]

    def take(self, index: Tensor) -> Tensor:
        """Return the token ids of the rows with numbers `index` [n], as int64 [n, length]."""
        return self.values[index].long() & 0xFFFF


class Batches:
    """Training batches. Each epoch has a new order of the rows and new masks, which depend on the seed only.

    batch: rows per step, over all processes
    rank, world: number of this process and of all processes; each takes an equal share of every batch
    """

    def __init__(
        self, rows: Rows, objective: Objective, *, batch: int, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        if batch % world:
            raise InputError(f"batch {batch} does not divide among {world} processes")
        self.rows, self.objective, self.batch, self.seed = rows, objective, batch, seed
        self.share = slice(rank * (batch // world), (rank + 1) * (batch // world))
        self._block = lru_cache(maxsize=1)(self._prepared)
        self._order = lru_cache(maxsize=2)(self._permutation)  # a block may lie in two epochs

    def at(self, step: int) -> Batch:
        """Return this process's share of the batch of step `step`, counted from 0."""
        number, within = divmod(step, _BLOCK)
        return Batch(*(part[within] for part in self._block(number)))

    def _prepared(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids [steps, rows, length], positions and targets [steps, rows·n] of _BLOCK steps."""
        first, count = number * _BLOCK * self.batch, _BLOCK * self.batch
        ids = self.rows.take(self._index(first, count)).view(_BLOCK, self.batch, -1)  # [steps, batch, length]
        # Every process draws masks for the whole batch and keeps its own rows: masks do not depend on their number.
        generator = torch.Generator(ids.device).manual_seed((self.seed + 1) * 1_000_003 + number)
        ids, positions, targets = (part[:, self.share].contiguous() for part in self.objective.prepare(ids, generator))
        return ids, _flattened(positions, ids.shape[-1]), targets.flatten(1)

    def _index(self, first: int, count: int) -> Tensor:
        """Return the row numbers [count] of the stream from `first` on: one permutation of all rows after the other."""
        parts = []
        while count:
            epoch, offset = divmod(first, self.rows.count)
            taken = min(count, self.rows.count - offset)
            parts.append(self._order(epoch)[offset : offset + taken])
            first, count = first + taken, count - taken
        return torch.cat(parts)

    def _permutation(self, epoch: int) -> Tensor:
        """Return the order of the rows in an epoch, [rows]."""
        generator = torch.Generator().manual_seed((self.seed + 1) * 7_919 + epoch)
        return torch.randperm(self.rows.count, generator=generator).to(self.rows.values.device)


def held_out_batches(rows: Rows, objective: Objective, size: int, parts: int = 1) -> list[Batch]:
    """Return the rows of a held-out file in batches of `size`, with masks that are the same for every run.

    Rows that do not fill a last batch are left out: equal shapes need one compilation and a plain mean over batches.
    parts: cut each batch into this many equal parts, where it divides; rows and masks are those of whole batches
    """
    size = min(size, rows.count)
    count = rows.count // size * size
    size = size // parts if size % parts == 0 else size
    ids = rows.take(torch.arange(count, device=rows.values.device)).view(count // size, size, -1)
    generator = torch.Generator().manual_seed(_HELD_OUT_SEED)  # on the CPU: the same masks on every device
    prepared = objective.prepare(ids.cpu(), generator)
    ids, positions, targets = (part.to(rows.values.device) for part in prepared)
    positions, targets = _flattened(positions, ids.shape[-1]), targets.flatten(1)  # [batches, rows·n]
    return [Batch(*batch) for batch in zip(ids, positions, targets, strict=True)]


def _flattened(positions: Tensor, length: int) -> Tensor:
    """Return positions within rows [steps, rows, n] as positions within the flattened batch [steps, rows·n]."""
    offset = torch.arange(positions.shape[1], device=positions.device).unsqueeze(1) * length  # [rows, 1]
    return (positions + offset).flatten(1)
