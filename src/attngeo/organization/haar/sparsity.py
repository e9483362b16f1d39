"""Sparsity of a set of coefficients: l1 entropy, shares that hold most of the energy, best-n-term errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attngeo.arrays import AnyArray, Floats, Ints, to_numpy
from attngeo.io.archive import as_plain
from attngeo.organization.geometry.l1 import l1_norm
from attngeo.organization.haar.magnitude_bins import MagnitudeBins

ENERGIES = (0.9, 0.99, 0.999)  # parts of the total energy that `shares` reports
POINTS = 64  # points of the best-n-term curve
LARGE = 1 << 21  # float32 coefficients from which on only a part of them is sorted


@dataclass(frozen=True, eq=False)
class Sparsity:
    """Summary of the sizes of a set of coefficients; smaller shares and a smaller l1/l2 mean sparser."""

    l1: float
    l2: float
    shares: dict[float, float]  # energy → smallest share of all coefficients that holds this part of the energy
    counts: Ints  # [points] numbers of terms n, from 1 to all
    errors: Floats  # [points] l2 error of the n largest terms, relative to the l2 norm

    @property
    def normalised(self) -> float:
        """Return l1/l2: 1 for a single coefficient, √N for N coefficients of equal size, 0 if all are 0."""
        return self.l1 / self.l2 if self.l2 > 0 else 0.0

    def __eq__(self, other: object) -> bool:
        return as_plain(self) == as_plain(other) if isinstance(other, Sparsity) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shares = ", ".join(f"{100 * e:g}% in {100 * share:.3g}%" for e, share in self.shares.items())
        return f"Sparsity(l1/l2 {self.normalised:.4g}; {shares})"


def sparsity(coefficients: AnyArray) -> Sparsity:
    """Return the sparsity of an array of coefficients of any shape.

    >>> sparsity(np.array([3.0, 0.0, 0.0, 4.0]))
    Sparsity(l1/l2 1.4; 90% in 50%, 99% in 50%, 99.9% in 50%)
    """
    flat = np.ascontiguousarray(to_numpy(coefficients)).reshape(-1)
    size = len(flat)
    counts = np.unique(np.rint(np.geomspace(1, size, POINTS)).astype(np.int64))
    if flat.dtype == np.float32 and size >= LARGE:
        bins = MagnitudeBins(flat)
        total = bins.energy
        remaining = bins.energies_of_smallest(size - counts)
        dropped = bins.most_within(_allowed(total))
    else:
        energies = np.square(flat, dtype=np.float64)  # those of float32 may overflow or underflow
        energies.sort()
        # From the smallest up: added to the large energies first, the small ones would be lost to rounding.
        left = np.cumsum(energies, dtype=np.float64)  # [N] energy of the i + 1 smallest coefficients
        total = float(left[-1])
        remaining = np.where(counts < size, left[size - 1 - counts], 0.0)
        dropped = np.searchsorted(left, _allowed(total), side="right")
    kept = size - np.minimum(dropped, size - 1) if total > 0 else np.ones(len(ENERGIES))
    shares = {energy: float(count / size) for energy, count in zip(ENERGIES, kept, strict=True)}
    errors = np.sqrt(remaining / total) if total > 0 else np.zeros(len(counts))
    return Sparsity(l1_norm(flat), total**0.5, shares, counts, errors)


def _allowed(total: float) -> Floats:
    """Return the energy that may be dropped for each of ENERGIES."""
    return (1 - np.asarray(ENERGIES)) * total * (1 + 1e-12)
