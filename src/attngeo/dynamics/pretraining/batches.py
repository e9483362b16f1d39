"""Batches as a function of the step: data order and masks follow from the seed, so a run can start anywhere in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attngeo.dynamics.data.tokens import Tokens
from attngeo.errors import InputError

_BLOCK = 32  # steps prepared at a time: the small kernels of masking are paid once for all of them


@dataclass(frozen=True)
class Batch:
    """One step's rows: what the model reads, the flat positions it must predict there, and what is right."""

    ids: Tensor  # [rows, length]
    at: Tensor  # [n]
    targets: Tensor  # [n]


class Rows:
    """A token file as rows of equal length, on the device, 16 bits a token."""

    def __init__(self, tokens: Tokens, part: str, length: int, device: torch.device, batch: int) -> None:
        array = tokens.array(part)
        self.count = len(array) // length
        if self.count < (batch if part == "train" else 1):
            wanted = f"the {batch} rows of {length} of one batch"
            if part == "valid":
                wanted = f"one row of {length}; name more held-out text with valid = [...]"
            raise InputError(f"{tokens.folder}/{part}.bin: {len(array)} tokens, fewer than {wanted}")
        # numpy's uint16 seen as int16: torch has no arithmetic for the former
        whole = np.array(array[: self.count * length]).view(np.int16)
        self.values = torch.from_numpy(whole).view(self.count, length).to(device)

    def take(self, index: Tensor) -> Tensor:
        """Token ids [*, length] of the rows at `index`, int64."""
        return self.values[index].long() & 0xFFFF


class Batches:
    """Training batches: a fresh order and fresh masks each pass, the same for every run with the same seed."""

    def __init__(self, rows: Rows, objective: Any, *, batch: int, seed: int, rank: int = 0, world: int = 1) -> None:
        if batch % world:
            raise InputError(f"batch {batch} does not divide among {world} processes")
        self.rows, self.objective, self.batch, self.seed = rows, objective, batch, seed
        self.share = slice(rank * (batch // world), (rank + 1) * (batch // world))
        self._number = -1
        self._held: tuple[Tensor, Tensor, Tensor] | None = None
        self._orders: dict[int, Tensor] = {}

    def at(self, step: int) -> Batch:
        number, within = divmod(step, _BLOCK)
        if number != self._number or self._held is None:
            self._number, self._held = number, self._block(number)
        return Batch(*(part[within] for part in self._held))

    def _block(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        first, count = number * _BLOCK * self.batch, _BLOCK * self.batch
        ids = self.rows.take(self._index(first, count)).view(_BLOCK, self.batch, -1)
        # Every process draws for the whole batch and keeps its rows: any number of them trains on the same masks.
        draw = torch.Generator(ids.device).manual_seed((self.seed + 1) * 1_000_003 + number)
        ids, at, targets = (part[:, self.share].contiguous() for part in self.objective.prepare(ids, draw))
        return ids, flattened(at, ids.shape[-1]), targets.flatten(1)

    def _index(self, first: int, count: int) -> Tensor:
        """Row numbers of the stream [first, first + count): one permutation after the other."""
        parts = []
        while count:
            epoch, start = divmod(first, self.rows.count)
            taken = min(count, self.rows.count - start)
            parts.append(self._order(epoch)[start : start + taken])
            first, count = first + taken, count - taken
        return torch.cat(parts)

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._orders:
            draw = torch.Generator().manual_seed((self.seed + 1) * 7_919 + epoch)
            order = torch.randperm(self.rows.count, generator=draw).to(self.rows.values.device)
            self._orders = {key: value for key, value in self._orders.items() if key == epoch - 1} | {epoch: order}
        return self._orders[epoch]


@dataclass(frozen=True)
class Masked:
    """Predict `share` of each row's tokens, seen as [MASK] (80%), another token (10%) or themselves (10%)."""

    mask: int
    special: tuple[int, ...]
    vocabulary: int
    share: float

    def predicted(self, length: int) -> int:
        """Positions to predict in each row: always the same number, so that shapes never change."""
        return max(1, round(self.share * length))

    def prepare(self, ids: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """ids [steps, rows, length] → what is read [steps, rows, length], where [steps, rows, n], targets likewise."""

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=draw, device=ids.device)

        ordinary, kept = _ordinary(self.vocabulary, self.special, ids.device)
        order = uniform(*ids.shape).masked_fill_(~ordinary[ids], -1.0)
        at = order.topk(self.predicted(ids.shape[-1]), dim=-1).indices.sort(-1).values  # [steps, rows, n]
        targets = ids.gather(-1, at)
        other = kept[(uniform(*at.shape) * len(kept)).long().clamp_(max=len(kept) - 1)]
        fate = uniform(*at.shape)
        seen = torch.where(fate < 0.8, self.mask, torch.where(fate < 0.9, other, targets))
        return ids.scatter(-1, at, seen), at, targets


@cache  # made once: both need the host, and waiting for it would stall the device at every block
def _ordinary(vocabulary: int, special: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Which tokens may be masked or drawn, as a table [vocabulary] and as a list of ids."""
    ordinary = torch.ones(vocabulary, dtype=torch.bool)
    ordinary[list(special)] = False
    return ordinary.to(device), ordinary.nonzero().squeeze(1).to(device)


@dataclass(frozen=True)
class Causal:
    """Predict every token from those before it."""

    def predicted(self, length: int) -> int:
        return length - 1

    def prepare(self, ids: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        steps, rows, length = ids.shape
        at = torch.arange(length - 1, device=ids.device).expand(steps, rows, -1)
        return ids, at, ids[..., 1:]


def flattened(at: Tensor, length: int) -> Tensor:
    """Positions within rows [steps, rows, n] → within the flattened batch [steps, rows·n]."""
    offset = torch.arange(at.shape[1], device=at.device).unsqueeze(1) * length
    return (at + offset).flatten(1)


def fixed(rows: Rows, objective: Any, size: int, parts: int = 1) -> list[Batch]:
    """The rows of a held-out file that fill batches of `size`, with masks that never change.

    parts  cut each batch into so many, where that leaves them equal: rows and masks stay those of whole batches
    """
    size = min(size, rows.count)
    whole = rows.count // size * size  # equal shapes: one compilation, and a plain mean over batches
    size = size // parts if size % parts == 0 else size
    ids = rows.take(torch.arange(whole, device=rows.values.device)).view(whole // size, size, -1)
    draw = torch.Generator().manual_seed(20_250_211)  # on the CPU: the same masks on every device
    ids, at, targets = (part.to(rows.values.device) for part in objective.prepare(ids.cpu(), draw))
    at, targets = flattened(at, ids.shape[-1]), targets.flatten(1)
    return [Batch(*parts) for parts in zip(ids, at, targets, strict=True)]
