"""Agreement between two geometries of the same elements: their affinities, trees and diffusion maps."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np

from attngeo.arrays import Floats
from attngeo.organization.geometry.diffusion import diffusion_map
from attngeo.organization.geometry.tree_agreement import LevelAgreement, level_agreement, mean_information
from attngeo.organization.trees.tree import Tree


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
    a, b = (cloud - cloud.mean(0) for cloud in (points, other))
    sizes = [float(np.linalg.norm(cloud)) for cloud in (a, b)]
    if min(sizes) == 0 or len(points) < 3:
        return nan
    stretch = np.linalg.svd((a / sizes[0]).T @ (b / sizes[1]), compute_uv=False).sum()
    return float(max(0.0, 1.0 - stretch**2))
