"""How far two geometries of the same elements agree: affinities, trees as a whole and by level, diffusion maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np

from attngeo.arrays import Floats, Ints
from attngeo.organization.geometry.diffusion import diffusion_map
from attngeo.organization.trees.partition import first_members
from attngeo.organization.trees.tree import Tree


@dataclass(frozen=True)
class LevelAgreement:
    """A level of one tree, the level of the other with the most similar number of folders, and their information."""

    folders: int
    folders_other: int
    information: float  # adjusted mutual information: 1 the same partition, about 0 by chance


@dataclass(frozen=True)
class Agreement:
    """Figures of one axis; NaN where there are too few elements to have one."""

    rank_correlation: float  # Spearman, of the affinities of all pairs
    levels: tuple[LevelAgreement, ...]
    procrustes: float  # of the diffusion maps: 0 the same shape, 1 nothing in common

    @property
    def information(self) -> float:
        """Mean over the levels."""
        return float(np.mean([level.information for level in self.levels])) if self.levels else nan

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Agreement:
        """From what a file holds, NaN as None."""
        correlation, distance = (nan if plain[n] is None else plain[n] for n in ("rank_correlation", "procrustes"))
        return cls(correlation, tuple(LevelAgreement(**level) for level in plain["levels"]), distance)


def agreement(affinity: Floats, tree: Tree, other_affinity: Floats, other_tree: Tree) -> Agreement:
    """Compare two organisations of one axis."""
    return Agreement(
        rank_correlation(affinity, other_affinity),
        level_agreement(tree, other_tree),
        procrustes(diffusion_map(affinity), diffusion_map(other_affinity)),
    )


def rank_correlation(affinity: Floats, other: Floats) -> float:
    """Spearman's correlation of the entries above the diagonal."""
    from scipy.stats import rankdata

    above = np.triu_indices(len(affinity), 1)
    a, b = affinity[above], other[above]
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return nan
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


def procrustes(points: Floats, other: Floats) -> float:
    """Least Σ of squares between two clouds, both centred and scaled to 1, one turned and stretched onto the other."""
    a, b = (cloud - cloud.mean(0) for cloud in (points, other))
    sizes = [float(np.linalg.norm(cloud)) for cloud in (a, b)]
    if min(sizes) == 0 or len(points) < 3:
        return nan
    stretch = np.linalg.svd((a / sizes[0]).T @ (b / sizes[1]), compute_uv=False).sum()
    return float(max(0.0, 1.0 - stretch**2))


def closeness_correlation(tree: Tree, other: Tree) -> float:
    """Correlation of the closeness (`Tree.closeness`) of all pairs in two trees; 1 where they are the same.

    >>> closeness_correlation(Tree.dyadic(8), Tree.dyadic(8).permuted([1, 0, 2, 3, 4, 5, 6, 7]))
    1.0
    """
    n = tree.size
    if tree == other or n < 3:
        return 1.0
    one, two, all_alike = _steps(tree), _steps(other), [(np.zeros(n, np.int64), np.ones(1, np.int64))]
    sums = [_pair_sum(steps, all_alike) for steps in (one, two)]
    pairs = n * (n - 1)
    spreads = [pairs * _pair_sum(steps, steps) - sum_**2 for steps, sum_ in zip((one, two), sums, strict=True)]
    if 0 in spreads:  # nothing between the root and the elements
        return float(spreads[0] == spreads[1])
    return float((pairs * _pair_sum(one, two) - sums[0] * sums[1]) / (spreads[0] ** 0.5 * spreads[1] ** 0.5))


def _steps(tree: Tree) -> list[tuple[Ints, Ints]]:
    """Levels above the elements: labels [n], and by how much each folder is larger than its parent, the root than 0.

    Added up over the folders that hold both of a pair, these are the size of the smallest one.
    """
    found, around = [], np.zeros(tree.size, np.int64)
    for row in tree.levels[:-1]:
        sizes = np.bincount(row)
        steps = sizes - around[first_members(row)]
        if steps.any():
            found.append((row, steps))
        around = sizes[row]
    return found


def _pair_sum(one: list[tuple[Ints, Ints]], two: list[tuple[Ints, Ints]]) -> int:
    """Σ over pairs i ≠ j of one size times the other, exactly, from the overlaps of folders: no [n, n] is built."""
    total = 0
    for row, steps in one:
        for other, its in two:
            shape = len(steps), len(its)
            overlap = np.bincount(row * shape[1] + other, minlength=shape[0] * shape[1]).reshape(shape)
            total += int(steps @ (overlap * (overlap - 1)) @ its)
    return total


def level_agreement(tree: Tree, other: Tree) -> tuple[LevelAgreement, ...]:
    """Every level of `tree` between root and elements, beside the level of `other` nearest in number of folders."""
    n = tree.size
    choices = [level for level, width in enumerate(other.widths) if 1 < width < n]
    found, widths = [], set()
    for level, width in enumerate(tree.widths):
        if not 1 < width < n or width in widths:  # a level that repeats the one above says nothing new
            continue
        widths.add(width)
        match = min(choices, key=lambda c: abs(np.log(other.widths[c] / width)), default=0)
        information = adjusted_information(tree.levels[level], other.levels[match])
        found.append(LevelAgreement(width, other.widths[match], information))
    return tuple(found)


def adjusted_information(labels: Ints, others: Ints) -> float:
    """Mutual information of two partitions, less what chance gives, over the mean of their entropies less the same.

    Chance: partitions with the same folder sizes drawn at random (Vinh, Epps & Bailey 2010).
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
    return float(-(sizes / n * np.log(sizes / n)).sum())


def _expected_information(a: Ints, b: Ints, n: int) -> float:
    """Over all folder sizes and all overlaps they can have: the hypergeometric chance of the overlap times its share.

    Equal sizes are counted, not repeated, and every term is one entry of a single array.
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
