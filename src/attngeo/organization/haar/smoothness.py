"""The mixed-Hölder exponent α of an array: how fast its Haar coefficients shrink with their supports.

    |⟨T, ψ_R⟩| ≤ C |R|^{α + ½}        R: support of the Haar function, |R|: its share of the array

In a log-log plot of coefficients against supports the slope is α + ½. A larger α means a smoother array; white noise
has α = −½.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import AnyArray, Floats, Ints, to_numpy
from attngeo.errors import InputError
from attngeo.io.plain import as_plain
from attngeo.organization.trees.tree import Tree

FEWEST = 8  # least number of coefficients in a bin
FLOOR = 1e-12  # bins this small relative to the largest are rounding


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
class Holder:
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

    def __eq__(self, other: object) -> bool:
        return as_plain(self) == as_plain(other) if isinstance(other, Holder) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        low, high = self.rms, self.high
        return f"Holder(α {low.exponent:.3f} ± {low.error:.3f}; 95th percentile {high.exponent:.3f} ± {high.error:.3f})"


def holder(coefficients: AnyArray, trees: Sequence[Tree]) -> Holder:
    """Return the mixed-Hölder fit of Haar coefficients along one tree per axis.

    |R| is the product of the supports' shares of their axes. Coefficients with a constant factor are left out. The rest
    are binned by ⌊log₂ |R|⌋; bins with fewer than 8 coefficients are left out, and each other bin is weighted by its
    number of coefficients.
    """
    sizes = tuple(tree.size for tree in trees)
    if tuple(np.shape(coefficients)) != sizes:
        raise InputError(f"holder: coefficients of shape {np.shape(coefficients)} do not match trees of sizes {sizes}")
    inner = np.abs(np.asarray(to_numpy(coefficients))[(slice(1, None),) * len(sizes)]).reshape(-1)
    bins, means = _support_bins([np.log2(tree.rotations.share[1:]) for tree in trees])
    support, rms, high, counts = [], [], [], []
    for index, mean in means.items():
        sizes_here = inner[bins == index].astype(np.float64)
        if len(sizes_here) < FEWEST:
            continue
        support.append(mean)
        rms.append(float(np.sqrt(np.mean(sizes_here**2))))
        high.append(float(np.quantile(sizes_here, 0.95)))
        counts.append(len(sizes_here))
    x, weights = np.asarray(support), np.asarray(counts, np.int64)
    typical, largest = np.asarray(rms), np.asarray(high)
    kept = typical > FLOOR * typical.max(initial=0.0)
    x, weights, typical, largest = x[kept], weights[kept], typical[kept], largest[kept]
    positive = largest > 0
    log_rms, log_high = np.log2(typical), np.log2(largest, out=np.full(len(largest), np.nan), where=positive)
    lines = _line(x, log_rms, weights), _line(x[positive], log_high[positive], weights[positive])
    return Holder(*lines, x, log_rms, log_high, weights)


def _support_bins(logs: Sequence[Floats]) -> tuple[NDArray[np.int16], dict[int, float]]:
    """Return ⌊log₂ |R|⌋ of all coefficients, flat, and the mean log₂ |R| of each of these bins, in ascending order.

    logs: per axis, log₂ of the supports' shares of the axis
    """
    # Row by row of the first axis: sums for the whole array in float64 would take more time and memory than the rest.
    rest: Any = reduce(np.add.outer, logs[1:], np.zeros(())).reshape(-1)
    bins = np.empty((len(logs[0]), rest.size), np.int16)
    counts: Counter[int] = Counter()
    sums: Counter[int] = Counter()
    for row, first in enumerate(logs[0]):
        here = rest + first
        # The small constant keeps exact powers of two, such as 1/2 · 1/2, from falling into the bin below by rounding.
        np.floor(here + 1e-9, out=bins[row], casting="unsafe")
        low = int(bins[row].min(initial=0))
        numbers = np.bincount(bins[row] - low)
        totals = np.bincount(bins[row] - low, here)
        for index in np.flatnonzero(numbers).tolist():
            counts[index + low] += int(numbers[index])
            sums[index + low] += float(totals[index])  # type: ignore[assignment]
    return bins.reshape(-1), {index: sums[index] / counts[index] for index in sorted(counts)}


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
