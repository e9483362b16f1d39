"""A direct implementation of the questionnaire, the baseline of the speed benchmark.

It uses float64, computes every folder mean, and compares slices with SciPy's cityblock distance on one thread.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import pdist, squareform

from attngeo.organization import Tree, affinity_from_distance, cosine_affinity, flexible_tree


def folder_means(tree: Tree) -> tuple[np.ndarray, np.ndarray]:
    """Return [folders, n] rows that take the mean over each folder of all levels, and the weights |F|/n."""
    rows, weights = [], []
    for labels in tree.levels:
        for folder in range(labels.max() + 1):
            members = labels == folder
            rows.append(members / members.sum())
            weights.append(members.mean())
    return np.asarray(rows), np.asarray(weights)


def direct_distance(array: np.ndarray, axis: int, trees: dict[int, Tree]) -> np.ndarray:
    """Return the tree distances [n, n] between the slices of `axis`."""
    slices = np.moveaxis(array, axis, 0)
    (left, left_weights), (right, right_weights) = (folder_means(trees[a]) for a in range(3) if a != axis)
    left, right = left * left_weights[:, None], right * right_weights[:, None]
    means = np.empty((len(slices), len(left) * len(right)))
    for i, one in enumerate(slices):
        means[i] = (left @ one @ right.T).ravel()
    return squareform(pdist(means, "cityblock"))


def direct_organize(array: np.ndarray, iterations: int = 3) -> list[Tree]:
    """Return the trees; each iteration updates heads, queries, keys from the newest trees of the other axes."""
    array = np.asarray(array, np.float64)
    trees = {axis: flexible_tree(cosine_affinity(array, axis)) for axis in (0, 1)}
    for _ in range(iterations):
        before = dict(trees)
        for axis in (2, 0, 1):
            trees[axis] = flexible_tree(affinity_from_distance(direct_distance(array, axis, trees)))
        if trees == before:
            break
    return [trees[axis] for axis in range(3)]
