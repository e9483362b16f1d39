"""How few coefficients hold how much: shares of the energy, the best-n-term curve, the l1 entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attngeo.arrays import Floats, Ints, to_numpy
from attngeo.io.archive import as_plain
from attngeo.organization.geometry.l1 import l1_norm

ENERGIES = (0.9, 0.99, 0.999)
POINTS = 64  # of the best-n-term curve


@dataclass(frozen=True, eq=False)
class Sparsity:
    """The sizes of a set of coefficients, summed up; smaller shares and a smaller l1 over l2 mean sparser."""

    l1: float
    l2: float
    shares: dict[float, float]  # energy → least share of all coefficients that holds it
    counts: Ints  # [points] n, from 1 to all
    errors: Floats  # [points] l2 error of the best n terms, relative to the whole

    @property
    def normalised(self) -> float:
        """l1 over l2: between 1 (one coefficient) and √N (all the same size); 0 where there is nothing."""
        return self.l1 / self.l2 if self.l2 > 0 else 0.0

    def __eq__(self, other: object) -> bool:
        return as_plain(self) == as_plain(other) if isinstance(other, Sparsity) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shares = ", ".join(f"{100 * e:g}% in {100 * share:.3g}%" for e, share in self.shares.items())
        return f"Sparsity(l1/l2 {self.normalised:.4g}; {shares})"


def sparsity(coefficients: Any) -> Sparsity:
    """Sort the energies once, read everything off their running sum."""
    flat = np.asarray(to_numpy(coefficients)).reshape(-1)
    energies = np.square(flat)  # own precision: a second array of doubles would be the largest thing here
    energies.sort()
    # From the smallest up, so that what is left out is summed before what would swallow it.
    left = np.cumsum(energies, dtype=np.float64)  # left[i]: energy of the i + 1 smallest
    total, size = float(left[-1]), len(left)
    shares = {}
    for energy in ENERGIES:
        dropped = int(np.searchsorted(left, (1 - energy) * total * (1 + 1e-12), side="right"))
        shares[energy] = (size - min(dropped, size - 1)) / size if total > 0 else 1 / size
    counts = np.unique(np.rint(np.geomspace(1, size, POINTS)).astype(np.int64))
    remaining = np.where(counts < size, left[size - 1 - counts], 0.0)
    errors = np.sqrt(remaining / total) if total > 0 else np.zeros(len(counts))
    return Sparsity(l1_norm(flat), total**0.5, shares, counts, errors)
