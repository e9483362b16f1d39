"""Sums over the smallest numbers of a large float32 array, without sorting all of it.

The upper 16 bits of |x|, exponent and 7 bits of the mantissa, order float32 numbers into bins of 1% width. Counts and
energies per bin come from one pass over the array. Only the few bins that a question falls into are sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import Bools, Floats, Ints

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
