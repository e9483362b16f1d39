"""The questionnaire the plain way: float64, every folder mean, scipy's cityblock on one thread."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import pdist, squareform

from attngeo.organization import Tree, affinity_from_distance, cosine_affinity, flexible_tree


def folder_means(tree: Tree) -> tuple[np.ndarray, np.ndarray]:
    """[folders, n] averages over all folders of all levels, and their weights |F|/n."""
    rows, weights = [], []
    for labels in tree.levels:
        for folder in range(labels.max() + 1):
            members = labels == folder
            rows.append(members / members.sum())
            weights.append(members.mean())
    return np.asarray(rows), np.asarray(weights)


def plain_distance(array: np.ndarray, axis: int, trees: dict[int, Tree]) -> np.ndarray:
    slices = np.moveaxis(array, axis, 0)
    (left, left_weights), (right, right_weights) = (folder_means(trees[a]) for a in range(3) if a != axis)
    left, right = left * left_weights[:, None], right * right_weights[:, None]
    means = np.empty((len(slices), len(left) * len(right)))
    for i, one in enumerate(slices):
        means[i] = (left @ one @ right.T).ravel()
    return squareform(pdist(means, "cityblock"))


def plain_organize(array: np.ndarray, iterations: int = 3) -> list[Tree]:
    """Heads, queries, keys in every iteration, each from the newest trees of the others."""
    array = np.asarray(array, np.float64)
    trees = {axis: flexible_tree(cosine_affinity(array, axis)) for axis in (0, 1)}
    for _ in range(iterations):
        before = dict(trees)
        for axis in (2, 0, 1):
            trees[axis] = flexible_tree(affinity_from_distance(plain_distance(array, axis, trees)))
        if trees == before:
            break
    return [trees[axis] for axis in range(3)]
