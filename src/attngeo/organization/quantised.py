"""The largest Haar coefficients of a network tensor, quantised: a small stand-in from which any head can be rebuilt.

Each head is scaled to norm 1, so that faint heads count as much as strong ones, and the tensor is expanded along its
three trees. With a step Δ, a coefficient c is kept where |c| ≥ Δ, as its sign and its level

    ⌊|c| / Δ⌋ = 1, 2, …            rebuilt as ±(level + ½) Δ

What is lost is the energy of the dropped coefficients and about Δ²/12 for each kept one. Δ is the largest step with
which the tensor and every head keep enough of their energy. The transform is orthogonal, so the energy of a head can be
measured after the inverse transform along the heads alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import Floats, Ints
from attngeo.errors import InputError
from attngeo.organization.coefficients import energies_of_smallest
from attngeo.organization.haar import forward, inverse
from attngeo.organization.tree import Tree

ENERGY = 0.99  # share of the energy of the whole tensor to keep
HEAD_ENERGY = 0.95  # share of the energy of every head
MOST = 4_000_000  # coefficients kept at most
FEW = 200_000  # coefficients that are kept in any case: a small tensor is kept almost exactly
HIGHEST = 32_767  # largest level
BINS = 0x7F80  # bins of |coefficient| that share their 16 leading bits as float32, up to the largest finite one
FINER = 0.7  # factor of the next step to try where a head falls short
MARGIN = 0.97  # part of the allowed loss to use, because the loss is only estimated when the step is chosen


@dataclass(frozen=True, eq=False)
class QuantisedExpansion:
    """The kept coefficients, by head column, then query column, then key column, and the energy that they hold.

    A stop shows the coefficients with |level| at least some power of 2; the last stop shows all of them.

    >>> array, trees = planted((16, 12, 8), seed=0)
    >>> kept = quantise(array, trees)
    >>> bool(kept.shares[-1] >= 0.99), bool(kept.head_shares[-1].min() >= 0.95), kept.rebuilt().shape
    (True, True, (16, 12, 8))
    """

    trees: tuple[Tree, ...]  # queries, keys, heads
    norms: Floats  # [heads] of the heads as given
    step: float  # Δ
    column: Ints  # [n] head column of each coefficient, ascending
    position: Ints  # [n] query column · number of keys + key column, ascending within a head column
    levels: NDArray[np.int16]  # [n] with sign, never 0
    stops: Ints  # [stops] least |level| that a stop shows, falling to 1
    counts: Ints  # [stops] number of coefficients that it shows
    shares: Floats  # [stops] share of the tensor's energy that they hold
    head_shares: Floats  # [stops, heads] the same for every head

    def rebuilt(self, stop: int = -1) -> NDArray[np.float32]:
        """Return the tensor [queries, keys, heads] that the coefficients of a stop stand for, by default all."""
        queries, keys, heads = (tree.size for tree in self.trees)
        shown = np.abs(self.levels) >= self.stops[stop]
        coefficients = np.zeros((queries * keys, heads), np.float32)
        coefficients[self.position[shown], self.column[shown]] = _values(self.levels[shown], self.step)
        scaled = inverse(coefficients.reshape(queries, keys, heads), dict(enumerate(self.trees)))
        return np.asarray(scaled * self.norms.astype(np.float32))


def quantise(
    array: NDArray[Any],  # [queries, keys, heads]
    trees: Sequence[Tree],
    *,
    energy: float = ENERGY,
    head_energy: float = HEAD_ENERGY,
    most: int = MOST,
) -> QuantisedExpansion:
    """Return the largest coefficients of a tensor along its trees, with at least these shares of the energy.

    most: number of coefficients that is not exceeded, even where heads then keep less
    """
    if array.ndim != 3 or len(trees) != 3:
        raise InputError(f"quantise: an array with {array.ndim} axes and {len(trees)} trees, expected 3 of each")
    norms = np.sqrt(np.einsum("qkh,qkh->h", array, array, dtype=np.float64))  # [heads]
    present = norms > 0
    scale = np.divide(1.0, norms, out=np.zeros_like(norms), where=present).astype(np.float32)
    coefficients = forward(array * scale, dict(enumerate(trees))).astype(np.float32, copy=False)
    magnitudes = _Magnitudes.of(coefficients)
    step = magnitudes.step(MARGIN * (1 - energy) * present.sum(), most)
    step = min(step, magnitudes.step(0.0, min(FEW, most)))
    while True:
        index, levels = _levels(coefficients, step)
        stops = _stops(np.abs(levels))
        lost = _lost(coefficients, trees[2], index, levels, step, stops[-1:])  # [1, heads]
        finer = max(FINER * step, magnitudes.step(0.0, most))
        if (lost[0][present] <= 1 - head_energy).all() or finer >= step:
            break
        step = finer
    lost = np.vstack([_lost(coefficients, trees[2], index, levels, step, stops[:-1]), lost])  # [stops, heads]
    heads = len(norms)
    column = (index % heads).astype(np.int16 if heads <= HIGHEST else np.int64)
    order = np.argsort(column, kind="stable")  # positions ascend already
    return QuantisedExpansion(
        trees=tuple(trees),
        norms=norms,
        step=step,
        column=column[order].astype(np.int64),
        position=(index // heads)[order],
        levels=levels[order],
        stops=stops,
        counts=np.asarray([np.count_nonzero(np.abs(levels) >= stop) for stop in stops]),
        shares=1 - lost.sum(1) / max(int(present.sum()), 1),
        head_shares=1 - lost,
    )


@dataclass(frozen=True)
class _Magnitudes:
    """What each step would cost, from a histogram of |coefficient|."""

    edges: Floats  # [bins] lower ends of the bins that are not empty
    dropped: Floats  # [bins] energy below each edge
    kept: Ints  # [bins] number of coefficients from each edge on
    finest: float  # smallest step whose levels have room

    @classmethod
    def of(cls, coefficients: NDArray[np.float32]) -> _Magnitudes:
        sizes = np.sort(np.abs(coefficients), None)
        ends = (np.arange(BINS, dtype=np.uint32) << np.uint32(16)).view(np.float32)  # lower ends of all bins
        below = np.append(np.searchsorted(sizes, ends), sizes.size)
        used = np.flatnonzero(np.diff(below))
        edges, below = ends[used].astype(np.float64), below[used]
        finest = 1.01 * float(edges[-1]) / HIGHEST  # a bin is 1% wide
        dropped = energies_of_smallest(sizes, below)
        return cls(edges, dropped, sizes.size - below, max(finest, float(np.finfo(np.float32).tiny)))

    def step(self, loss: float, most: int) -> float:
        """Return the largest step that loses at most `loss`, but none that keeps more than `most` coefficients."""
        fits = np.flatnonzero(self.dropped + self.kept * np.square(self.edges) / 12 <= loss)
        chosen = int(fits[-1]) if len(fits) else 0
        chosen = max(chosen, int(np.argmax(self.kept <= most)))
        return max(float(self.edges[chosen]), self.finest)


def _stops(sizes: NDArray[np.int16]) -> Ints:
    """Return the powers of 2 from the largest |level| down to 1, without those that add no coefficient."""
    powers = 2 ** np.arange(int(sizes.max(initial=1)).bit_length())[::-1]
    counts = [np.count_nonzero(sizes >= power) for power in powers]
    adds = np.diff(counts, prepend=0) > 0
    adds[-1] = True
    return np.append(powers[:-1][adds[:-1]], 1)


def _levels(coefficients: NDArray[np.float32], step: float) -> tuple[Ints, NDArray[np.int16]]:
    """Return the flat indices of the coefficients that are kept, and their levels with sign."""
    flat = coefficients.reshape(-1)
    kept = np.flatnonzero(np.abs(flat) >= step)
    return kept, np.trunc(flat[kept] / np.float64(step)).astype(np.int16)


def _values(levels: NDArray[np.int16], step: float) -> NDArray[np.float32]:
    """Return the coefficients that levels with sign stand for."""
    return ((levels + np.copysign(0.5, levels)) * step).astype(np.float32)


def _lost(
    coefficients: NDArray[np.float32],
    heads: Tree,
    index: Ints,
    levels: NDArray[np.int16],
    step: float,
    stops: Ints,
) -> Floats:
    """Return the energy of each scaled head that is missing at each stop, [stops, heads]."""
    sizes, values = np.abs(levels), _values(levels, step)
    residual = coefficients.copy()
    flat, last = residual.reshape(-1), np.inf
    lost = np.zeros((len(stops), heads.size))
    for row, stop in enumerate(stops):
        new = (sizes >= stop) & (sizes < last)
        flat[index[new]] -= values[new]
        left = inverse(residual, {2: heads})  # [query columns, key columns, heads]
        lost[row] = np.einsum("qkh,qkh->h", left, left, dtype=np.float64)
        last = stop
    return lost
