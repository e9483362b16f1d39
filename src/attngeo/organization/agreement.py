"""Agreement between two geometries of the same elements: their affinities, trees and diffusion maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np

from attngeo.arrays import Floats, Ints
from attngeo.organization.affinity import diffusion_map
from attngeo.organization.tree import Tree


@dataclass(frozen=True)
class LevelAgreement:
    """A level of one tree compared with the level of the other tree that has the most similar number of folders."""

    folders: int
    folders_other: int
    information: float  # adjusted mutual information: 1 for equal partitions, about 0 for random ones


def closeness_correlation(tree: Tree, other: Tree) -> float:
    """Return the correlation, over all pairs of elements, of their closeness (`Tree.closeness`) in two trees.

    Equal trees have correlation 1.

    >>> round(closeness_correlation(Tree.dyadic(8), Tree.dyadic(8).permuted([1, 0, 2, 3, 4, 5, 6, 7])), 9)
    1.0
    """
    above = np.triu_indices(tree.size, 1)
    one, two = tree.closeness()[above], other.closeness()[above]  # [pairs]
    if tree == other or len(one) < 2:
        return 1.0
    if np.ptp(one) == 0 or np.ptp(two) == 0:  # no levels between the root and the elements: all pairs are equally close
        return float(np.ptp(one) == np.ptp(two))
    return float(np.corrcoef(one, two)[0, 1])


def level_agreement(tree: Tree, other: Tree) -> tuple[LevelAgreement, ...]:
    """Return the agreement of each level of `tree` between root and elements with a level of `other`.

    The level of `other` is the one whose number of folders is nearest on a logarithmic scale. A level of `tree` that
    repeats the one above is left out.
    """
    n = tree.size
    choices = [level for level, width in enumerate(other.widths) if 1 < width < n]
    levels, widths = [], set()
    for level, width in enumerate(tree.widths):
        if not 1 < width < n or width in widths:
            continue
        widths.add(width)
        match = min(choices, key=lambda c: abs(np.log(other.widths[c] / width)), default=0)
        information = adjusted_information(tree.levels[level], other.levels[match])
        levels.append(LevelAgreement(width, other.widths[match], information))
    return tuple(levels)


def mean_information(levels: Sequence[LevelAgreement]) -> float:
    """Return the mean adjusted mutual information over the levels; NaN where there is none."""
    return float(np.mean([level.information for level in levels])) if levels else nan


def adjusted_information(labels: Ints, others: Ints) -> float:
    """Return the adjusted mutual information of two partitions, given as labels [n]: (I − E) / (H − E).

    I is the mutual information, H the mean of the two entropies, and E the expected I of random partitions with the
    same folder sizes (Vinh, Epps & Bailey 2010).
    """
    n = len(labels)
    a, b = np.bincount(labels), np.bincount(others)
    a, b = a[a > 0], b[b > 0]
    if len(a) == len(b) and len(a) in (1, n):
        return 1.0
    pairs = np.unique(np.stack([labels, others]), axis=1, return_counts=True)
    cells = pairs[1].astype(np.float64)
    rows, columns = np.bincount(labels)[pairs[0][0]], np.bincount(others)[pairs[0][1]]
    mutual = float((cells / n * np.log(n * cells / (rows * columns))).sum())
    expected = _expected_information(a, b, n)
    most = (_entropy(a, n) + _entropy(b, n)) / 2
    return (mutual - expected) / (most - expected) if abs(most - expected) > 1e-15 else 0.0


def _entropy(sizes: Ints, n: int) -> float:
    """Return the entropy of a partition with these folder sizes."""
    return float(-(sizes / n * np.log(sizes / n)).sum())


def _expected_information(a: Ints, b: Ints, n: int) -> float:
    """Return the expected mutual information of random partitions with the folder sizes a and b.

    It is the sum, over all pairs of sizes and all overlaps k they can have, of the hypergeometric probability of k
    times (k/n) log(n k / (x y)). Each distinct pair of sizes is computed once, and all terms are one array.
    """
    from scipy.special import gammaln

    sizes_a, times_a = np.unique(a, return_counts=True)
    sizes_b, times_b = np.unique(b, return_counts=True)
    x, y = (grid.reshape(-1) for grid in np.meshgrid(sizes_a, sizes_b, indexing="ij"))
    times = np.multiply.outer(times_a, times_b).reshape(-1)
    least, most = np.maximum(1, x + y - n), np.minimum(x, y)
    lengths = most - least + 1
    of = np.repeat(np.arange(len(x)), lengths)
    k = np.arange(len(of)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + least[of]  # overlap
    x, y, times = x[of], y[of], times[of]

    def log_factorial(numbers: Ints) -> Floats:
        return np.asarray(gammaln(numbers + 1.0))

    chance = (log_factorial(x) + log_factorial(y) + log_factorial(n - x) + log_factorial(n - y) - gammaln(n + 1.0)) - (
        log_factorial(k) + log_factorial(x - k) + log_factorial(y - k) + log_factorial(n - x - y + k)
    )
    return float((times * (k / n) * np.log(n * k / (x * y)) * np.exp(chance)).sum())


@dataclass(frozen=True)
class Agreement:
    """Agreement of two organisations of one axis; a figure is NaN if there are too few elements."""

    rank_correlation: float  # Spearman correlation of the affinities of all pairs
    levels: tuple[LevelAgreement, ...]
    procrustes: float  # distance of the diffusion maps, from 0 (same shape) to 1 (nothing in common)

    @property
    def information(self) -> float:
        """Return the mean adjusted mutual information over the levels."""
        return mean_information(self.levels)


def agreement(affinity: Floats, tree: Tree, other_affinity: Floats, other_tree: Tree) -> Agreement:
    """Return the agreement of two organisations of one axis, each given by its affinity [n, n] and its tree."""
    return Agreement(
        rank_correlation(affinity, other_affinity),
        level_agreement(tree, other_tree),
        procrustes(diffusion_map(affinity), diffusion_map(other_affinity)),
    )


def rank_correlation(affinity: Floats, other: Floats) -> float:
    """Return Spearman's correlation of the entries above the diagonal of two affinities [n, n]."""
    from scipy.stats import rankdata

    above = np.triu_indices(len(affinity), 1)
    a, b = affinity[above], other[above]
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return nan
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


def procrustes(points: Floats, other: Floats) -> float:
    """Return the Procrustes distance of two point clouds [n, k].

    Both clouds are centred and scaled to norm 1. The distance is the least sum of squared differences after one of
    them is rotated and scaled.
    """
    from scipy.spatial import procrustes as scipy_procrustes

    if len(points) < 3 or np.ptp(points, 0).max() == 0 or np.ptp(other, 0).max() == 0:
        return nan
    return float(scipy_procrustes(points, other)[2])
