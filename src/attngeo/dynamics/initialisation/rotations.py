"""Random rotations, and the random state that initialisations draw from."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Seed: TypeAlias = int | torch.Generator


def generator(seed: Seed) -> torch.Generator:
    """Return a generator with this seed. It draws on the CPU, so that an initialisation is the same on every device."""
    return seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)


def random_rotations(count: tuple[int, ...], size: int, draw: torch.Generator) -> Tensor:
    """Return independent rotations [*count, size, size], uniform on SO(size) (Haar measure), in float64."""
    gauss = torch.randn(*count, size, size, generator=draw, dtype=torch.float64)
    q, r = torch.linalg.qr(gauss)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # without these signs QR is not uniform
    q[..., 0] *= torch.linalg.det(q).sign().unsqueeze(-1)  # determinant 1
    return q
