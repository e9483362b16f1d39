"""Sparsity of a set of coefficients: l1 entropy, shares that hold most of the energy, best-n-term errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import AnyArray, Bools, Floats, Ints, to_numpy
from attngeo.io.archive import as_plain
from attngeo.organization.distance import l1_norm

BINS = 0x7F80  # of all finite float32 numbers
CHUNK = 1 << 20  # numbers handled at a time, few enough to stay in cache


def bins_of(part: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the bin of every number."""
    bins: NDArray[np.uint32] = (part.view(np.uint32) >> np.uint32(16)) & np.uint32(0x7FFF)
    return bins


def bin_edges() -> Floats:
    """Return the lower end of every bin, [BINS]."""
    return (np.arange(BINS, dtype=np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


@dataclass(frozen=True, eq=False)
class MagnitudeBins:
    """The numbers of an array in bins of |x|: how many, and their energy Σ x².

    >>> bins = MagnitudeBins(np.array([3.0, -1.0, 2.0, 0.0], np.float32))
    >>> bins.energy, bins.energies_of_smallest(np.array([0, 2, 3])).tolist(), bins.most_within(np.array([1.5])).tolist()
    (14.0, [0.0, 1.0, 5.0], [2])
    """

    flat: NDArray[np.float32]  # [n], contiguous and finite

    def chunks(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.uint32]]]:
        """Yield the numbers, some at a time, with their bins."""
        for start in range(0, self.flat.size, CHUNK):
            part = self.flat[start : start + CHUNK]
            yield part, bins_of(part)

    @cached_property
    def _totals(self) -> tuple[Ints, Floats]:
        counts, energies = np.zeros(BINS, np.int64), np.zeros(BINS)
        for part, bins in self.chunks():
            counts += np.bincount(bins, minlength=BINS)
            energies += np.bincount(bins, np.square(part, dtype=np.float64), BINS)
        return counts, energies

    @cached_property
    def counts_below(self) -> Ints:
        """Return how many numbers lie in the bins below each, [BINS + 1]."""
        return np.append(0, np.cumsum(self._totals[0]))

    @cached_property
    def energies_below(self) -> Floats:
        """Return the energy of the bins below each, [BINS + 1]."""
        return np.append(0.0, np.cumsum(self._totals[1]))

    @property
    def energy(self) -> float:
        """Return the energy of all numbers."""
        return float(self.energies_below[-1])

    def energies_of_smallest(self, numbers: Ints) -> Floats:
        """Return the energy of the m smallest numbers for each m."""
        bins = np.searchsorted(self.counts_below, numbers, "right") - 1
        inside = numbers - self.counts_below[bins]
        sums = self._running_energies(np.unique(bins[inside > 0]))
        partial = [sums[b][m - 1] if m else 0.0 for b, m in zip(bins.tolist(), inside.tolist(), strict=True)]
        return np.asarray(self.energies_below[bins] + partial)

    def most_within(self, limits: Floats) -> Ints:
        """Return for each limit how many of the smallest numbers have at most this energy together."""
        bins = np.minimum(np.searchsorted(self.energies_below, limits, "right"), BINS) - 1
        sums = self._running_energies(np.unique(bins))
        found = [
            self.counts_below[b] + np.searchsorted(sums[b], limit - self.energies_below[b], "right")
            for b, limit in zip(bins.tolist(), limits.tolist(), strict=True)
        ]
        return np.asarray(found, np.int64)

    def _running_energies(self, chosen: Ints) -> dict[int, Floats]:
        """Return the sums of the smallest energies within each of the chosen bins."""
        if not len(chosen):
            return {}
        wanted: Bools = np.zeros(BINS, np.bool_)
        wanted[chosen] = True
        sizes = np.sort(np.abs(np.concatenate([part[wanted[bins]] for part, bins in self.chunks()])))
        parts = np.split(sizes, np.cumsum(self._totals[0][chosen])[:-1])
        return {int(b): np.cumsum(np.square(part, dtype=np.float64)) for b, part in zip(chosen, parts, strict=True)}


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
