"""The mixed-Hölder exponent: how fast Haar coefficients shrink with their supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import nan
from typing import Any

import numpy as np

from attngeo.arrays import Floats, Ints
from attngeo.errors import InputError
from attngeo.io.archive import as_plain
from attngeo.organization.trees.tree import Tree

FEWEST = 8  # coefficients that make a bin
FLOOR = 1e-12  # bins this small beside the largest are rounding


@dataclass(frozen=True)
class Line:
    """A weighted least squares line in log–log scale; the exponent is α = slope − ½."""

    slope: float
    error: float  # standard error of the slope, NaN with fewer than three bins

    @property
    def exponent(self) -> float:
        return self.slope - 0.5


@dataclass(frozen=True, eq=False)
class Holder:
    """|⟨T, ψ_R⟩| ≤ C |R|^{α + ½} measured: lines through the root mean square and the 95th percentile of each bin."""

    rms: Line
    high: Line
    support: Floats  # [bins] mean log₂|R|
    log_rms: Floats  # [bins] log₂ of the root mean square
    log_high: Floats  # [bins] log₂ of the 95th percentile, NaN where that is 0
    counts: Ints  # [bins]

    @property
    def exponent(self) -> float:
        """α of the root mean square line."""
        return self.rms.exponent

    @property
    def error(self) -> float:
        return self.rms.error

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Holder:
        """From what a file holds, NaN as None."""

        def line(name: str) -> Line:
            return Line(**{part: nan if number is None else number for part, number in plain[name].items()})

        def array(name: str) -> Floats:
            return np.asarray(plain[name], np.float64)  # None becomes NaN

        counts = np.asarray(plain["counts"], np.int64)
        return cls(line("rms"), line("high"), array("support"), array("log_rms"), array("log_high"), counts)

    def __eq__(self, other: object) -> bool:
        return as_plain(self) == as_plain(other) if isinstance(other, Holder) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        low, high = self.rms, self.high
        return f"Holder(α {low.exponent:.3f} ± {low.error:.3f}; 95th percentile {high.exponent:.3f} ± {high.error:.3f})"


def holder(coefficients: Any, trees: Sequence[Tree]) -> Holder:
    """Fit the exponent of Haar coefficients on their trees.

    Coefficients with a constant factor are left out. Bins are ⌊log₂|R|⌋, |R| the product of the supports' shares of
    their axes; each bin of at least 8 weighs as many as it holds.
    """
    sizes = tuple(tree.size for tree in trees)
    if tuple(np.shape(coefficients)) != sizes:
        raise InputError(f"holder: coefficients {np.shape(coefficients)} and trees of {sizes} do not match")
    inner = np.abs(np.asarray(coefficients)[(slice(1, None),) * len(sizes)]).reshape(-1)
    logs: Any = reduce(np.add.outer, [np.log2(tree.rotations.share[1:]) for tree in trees])
    logs = np.asarray(logs).reshape(-1)
    # Shares like 1/2 · 1/2 must not fall below −2 by rounding.
    bins = np.floor(logs + 1e-9).astype(np.int16)
    support, rms, high, counts = [], [], [], []
    for place in np.unique(bins):
        chosen = bins == place
        sizes_here = inner[chosen].astype(np.float64)
        if len(sizes_here) < FEWEST:
            continue
        support.append(float(logs[chosen].mean()))
        rms.append(float(np.sqrt(np.mean(sizes_here**2))))
        high.append(float(np.quantile(sizes_here, 0.95)))
        counts.append(len(sizes_here))
    x, weights = np.asarray(support), np.asarray(counts, np.int64)
    first, second = np.asarray(rms), np.asarray(high)
    kept = first > FLOOR * first.max(initial=0.0)
    x, weights, first, second = x[kept], weights[kept], first[kept], second[kept]
    positive = second > 0
    log_first, log_second = np.log2(first), np.log2(second, out=np.full(len(second), np.nan), where=positive)
    lines = _line(x, log_first, weights), _line(x[positive], log_second[positive], weights[positive])
    return Holder(*lines, x, log_first, log_second, weights)


def _line(x: Floats, y: Floats, weights: Ints) -> Line:
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
