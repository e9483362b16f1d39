"""Random rotations, and the random state that initialisations draw from."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import torch
from torch import Tensor

from attngeo.arguments import whole_number

Seed: TypeAlias = int | torch.Generator


def generator(seed: Seed, recipe: str) -> torch.Generator:
    """Return the generator that `recipe` draws from.

    It draws on the CPU, so that an initialisation is the same on every device.

    seed: a number, or a generator, which is returned as it is

    The seed of the generator is a digest of `seed` and `recipe`. Were it `seed` itself, a recipe would draw the numbers
    from which other weights were made: seed 0 is also that of the first matrix of a model.
    """
    if isinstance(seed, torch.Generator):
        return seed
    number = whole_number(seed, "seed", None)
    digest = hashlib.sha256(f"initialisation {recipe} {number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))  # torch's CPU generator uses 32 bits


def random_rotations(count: tuple[int, ...], size: int, draw: torch.Generator) -> Tensor:
    """Return independent rotations [*count, size, size], uniform on SO(size) (Haar measure), in float64."""
    gauss = torch.randn(*count, size, size, generator=draw, dtype=torch.float64)
    q, r = torch.linalg.qr(gauss)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # without these signs QR is not uniform
    q[..., 0] *= torch.linalg.det(q).sign().unsqueeze(-1)  # determinant 1
    return q
