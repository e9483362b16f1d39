"""What the Haar coefficients of an array show: how sparse they are, and the mixed-Hölder exponent.

Sparsity. The l1 entropy Σ|c|, the shares of the coefficients that hold most of the energy Σ c², and the l2 error of the
n largest terms.

Smoothness. The exponent α says how fast coefficients shrink with their supports:

    |⟨T, ψ_R⟩| ≤ C |R|^{α + ½}        R: support of the Haar function, |R|: its share of the array

In a log-log plot of coefficients against supports the slope is α + ½. A larger α means a smoother array; white noise
has α = −½.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import AnyArray, Floats, Ints, to_numpy
from attngeo.errors import InputError
from attngeo.organization.checks import ByValue
from attngeo.organization.distance import l1_norm
from attngeo.organization.tree import Tree

ENERGIES = (0.9, 0.99, 0.999)  # parts of the total energy that `shares` reports
POINTS = 64  # points of the best-n-term curve
CHUNK = 1 << 20  # energies held in float64 at a time


@dataclass(frozen=True, eq=False)
class Sparsity(ByValue):
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

    def __repr__(self) -> str:
        shares = ", ".join(f"{100 * e:g}% in {100 * share:.3g}%" for e, share in self.shares.items())
        return f"Sparsity(l1/l2 {self.normalised:.4g}; {shares})"


def sparsity(coefficients: AnyArray, *, overwrite: bool = False) -> Sparsity:
    """Return the sparsity of an array of coefficients of any shape.

    overwrite: a contiguous NumPy array may be sorted in place, which saves the memory of another one

    >>> sparsity(np.array([3.0, 0.0, 0.0, 4.0]))
    Sparsity(l1/l2 1.4; 90% in 50%, 99% in 50%, 99.9% in 50%)
    """
    values = to_numpy(coefficients)
    sizes = np.abs(values, out=values if overwrite else None).reshape(-1)
    sizes.sort()
    size = len(sizes)
    counts = np.unique(np.rint(np.geomspace(1, size, POINTS)).astype(np.int64))
    ends = np.unique(np.concatenate([np.arange(0, size, CHUNK), size - counts, [size]]))
    energies = energies_of_smallest(sizes, ends)
    total = float(energies[-1])
    shares, errors = {}, np.zeros(len(counts))
    for energy in ENERGIES:
        allowed = (1 - energy) * total * (1 + 1e-12)
        at = min(int(np.searchsorted(energies, allowed, "right")), len(ends) - 1) - 1  # the energy is reached after it
        part = np.cumsum(np.square(sizes[ends[at] : ends[at + 1]], dtype=np.float64))
        dropped = int(ends[at] + np.searchsorted(energies[at] + part, allowed, "right"))
        shares[energy] = (size - min(dropped, size - 1)) / size
    if total > 0:
        errors = np.sqrt(energies[np.searchsorted(ends, size - counts)] / total)
    return Sparsity(l1_norm(sizes), total**0.5, shares, counts, errors)


def energies_of_smallest(sizes: NDArray[Any], counts: Ints) -> Floats:
    """Return the energy of the m smallest numbers for each m of `counts`, which ascend from 0.

    sizes: [n] their absolute values, ascending; added to the large energies first, the small ones would be lost

    >>> energies_of_smallest(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0, 2, 3]))
    array([0., 1., 5.])
    """
    parts = (sizes[start:end] for start, end in pairwise(counts))
    return np.append(0.0, np.cumsum([np.einsum("i,i->", part, part, dtype=np.float64) for part in parts]))


FEWEST = 8  # least number of coefficients in a bin
FLOOR = 1e-12  # bins this small relative to the largest are rounding
ROUNDING = 4.0  # roundings of a whole support that a bin must exceed


@dataclass(frozen=True)
class Line:
    """A weighted least-squares line in log-log scale; the exponent is α = slope − ½."""

    slope: float
    error: float  # standard error of the slope, NaN for fewer than three bins

    @property
    def exponent(self) -> float:
        """Return α = slope − ½."""
        return self.slope - 0.5


@dataclass(frozen=True, eq=False)
class Holder(ByValue):
    """The fit of the exponent: lines through the root mean squares and the 95th percentiles of all bins."""

    rms: Line
    high: Line
    support: Floats  # [bins] mean log₂ |R|
    log_rms: Floats  # [bins] log₂ of the root mean square
    log_high: Floats  # [bins] log₂ of the 95th percentile, NaN if that is 0
    counts: Ints  # [bins] number of coefficients

    @property
    def exponent(self) -> float:
        """Return α of the line through the root mean squares."""
        return self.rms.exponent

    @property
    def error(self) -> float:
        """Return the standard error of that α."""
        return self.rms.error

    def line(self, support: Floats) -> Floats:
        """Return log₂ of the root mean square [k] on the fitted line, at log₂ |R| = support [k]."""
        middle, level = (np.average(values, weights=self.counts) for values in (self.support, self.log_rms))
        return np.asarray(level + self.rms.slope * (support - middle))

    def __repr__(self) -> str:
        low, high = self.rms, self.high
        return f"Holder(α {low.exponent:.3f} ± {low.error:.3f}; 95th percentile {high.exponent:.3f} ± {high.error:.3f})"


def holder(coefficients: AnyArray, trees: Sequence[Tree], *, overwrite: bool = False) -> Holder:
    """Return the mixed-Hölder fit of Haar coefficients along one tree per axis.

    |R| is the product of the supports' shares of their axes. Coefficients with a constant factor are left out. The rest
    are binned by ⌊log₂ |R|⌋; bins with fewer than 8 coefficients, and bins that hold nothing but rounding, are left
    out, and each other bin is weighted by its number of coefficients. The slope is NaN where fewer than two bins are
    left, as for a constant array.

    overwrite: a contiguous NumPy array may be left with other signs and in another order, which saves memory
    """
    sizes = tuple(tree.size for tree in trees)
    if tuple(np.shape(coefficients)) != sizes:
        raise InputError(f"holder: coefficients of shape {np.shape(coefficients)} do not match trees of sizes {sizes}")
    values = np.array(to_numpy(coefficients), order="C", copy=not overwrite)
    flat = values.reshape(-1)
    precision = np.finfo(np.result_type(values, np.float32)).eps
    # A coefficient is a difference of sums over its support, each of about √|R| times the norm of the array.
    norm = np.sqrt(np.einsum("i,i->", flat, flat, dtype=np.float64))
    support, rms, high, counts = [], [], [], []
    for mean, sizes_here in _by_support(values, [np.log2(tree.rotations.share) for tree in trees]):
        if len(sizes_here) < FEWEST:
            continue
        support.append(mean)
        rms.append(float(np.sqrt(np.einsum("i,i->", sizes_here, sizes_here, dtype=np.float64) / len(sizes_here))))
        high.append(float(np.quantile(sizes_here, 0.95, overwrite_input=True)))
        counts.append(len(sizes_here))
    x, weights = np.asarray(support), np.asarray(counts, np.int64)
    typical, largest = np.asarray(rms), np.asarray(high)
    noise = ROUNDING * float(precision) * norm * np.exp2(x / 2)  # [bins]
    kept = typical > np.maximum(noise, FLOOR * typical.max(initial=0.0))
    x, weights, typical, largest = x[kept], weights[kept], typical[kept], largest[kept]
    positive = largest > 0
    log_rms, log_high = np.log2(typical), np.log2(largest, out=np.full(len(largest), np.nan), where=positive)
    lines = _line(x, log_rms, weights), _line(x[positive], log_high[positive], weights[positive])
    return Holder(*lines, x, log_rms, log_high, weights)


def _by_support(values: NDArray[Any], logs: Sequence[Floats]) -> Iterator[tuple[float, NDArray[Any]]]:
    """Yield the mean log₂ |R| and all |coefficients| of each bin ⌊log₂ |R|⌋, in ascending order.

    values: coefficients, overwritten; those with a constant factor, the first of every axis, are left out
    logs:   per axis, log₂ of the supports' shares of the axis
    """
    # With the columns of the other axes in the order of their supports, the bins of a row are slices of it.
    rest: Any = reduce(np.add.outer, logs[1:], np.zeros(())).reshape(-1)
    constant = reduce(np.logical_or.outer, [np.arange(len(log)) == 0 for log in logs[1:]]).reshape(-1)
    order = np.lexsort((rest, constant))  # those with a constant factor come last
    rest = rest[order[: np.count_nonzero(~constant)]]
    totals = np.append(0.0, np.cumsum(rest))
    groups: defaultdict[int, list[NDArray[Any]]] = defaultdict(list)
    sums: defaultdict[int, float] = defaultdict(float)
    for first, row in zip(logs[0][1:].tolist(), values.reshape(len(values), -1)[1:], strict=True):
        # The small constant keeps exact powers of two, such as 1/2 · 1/2, from falling into the bin below by rounding.
        bins = np.floor(rest + (first + 1e-9)).astype(np.int64)
        row[:] = np.abs(row[order])
        bounds = [0, *(np.flatnonzero(np.diff(bins)) + 1).tolist(), len(bins)]
        for start, end in pairwise(bounds) if len(bins) else ():
            groups[int(bins[start])].append(row[start:end])
            sums[int(bins[start])] += float(totals[end] - totals[start]) + (end - start) * first
    for index in sorted(groups):
        together = np.concatenate(groups.pop(index))
        yield sums[index] / len(together), together


def _line(x: Floats, y: Floats, weights: Ints) -> Line:
    """Return the weighted least-squares line through the points (x, y)."""
    if len(x) < 2:
        return Line(float("nan"), float("nan"))
    share = weights / weights.sum()
    across, up = x - share @ x, y - share @ y
    spread = share @ across**2
    slope = float(share @ (across * up) / spread)
    if len(x) < 3:
        return Line(slope, float("nan"))
    left = share @ (up - slope * across) ** 2 / (len(x) - 2)
    return Line(slope, float(np.sqrt(left / spread)))
