"""The binary tree of an affinity: folders are cut in two from the root down, by the second diffusion vector."""

from __future__ import annotations

import numpy as np

from attngeo.arrays import ArrayInput, Floats, Ints
from attngeo.organization.checks import checked_affinity
from attngeo.organization.geometry.diffusion import diffusion
from attngeo.organization.trees.partition import canonical_labels
from attngeo.organization.trees.tree import Tree


def binary_tree(affinity: ArrayInput) -> Tree:
    """Return the tree of an affinity [n, n] whose folders are cut at the median of their second diffusion vector.

    The diffusion of a folder uses the affinity restricted to its elements.

    >>> position = np.array([0.0, 10.0, 1.0, 11.0])
    >>> binary_tree(np.exp(-abs(position[:, None] - position) / 5)).levels
    array([[0, 0, 0, 0],
           [0, 1, 0, 1],
           [0, 1, 2, 3]])
    """
    kernel = checked_affinity(affinity)
    n = len(kernel)
    levels = [np.zeros(n, np.int64)]
    while levels[-1].max() < n - 1:
        labels = levels[-1] * 2
        for folder in range(int(levels[-1].max()) + 1):
            members = np.flatnonzero(levels[-1] == folder)
            if len(members) > 1:
                order, cut = _cut(kernel[np.ix_(members, members)])
                labels[members[order[cut:]]] += 1
        levels.append(canonical_labels(labels))
    return Tree(np.stack(levels))


def _cut(affinity: Floats) -> tuple[Ints, int]:
    """Return an order [n] of a folder's elements and the position at which to cut it.

    If the folder has several connected components, each of them stays whole.
    """
    n = len(affinity)
    if (affinity == affinity[0]).all():
        return np.arange(n), (n + 1) // 2
    walk = diffusion(affinity)
    sizes = np.bincount(walk.components)
    if len(sizes) > 1:
        by_size = np.argsort(-sizes, kind="stable")
        cuts = np.cumsum(sizes[by_size])[:-1]
        rank = np.argsort(by_size)[walk.components]
        return np.argsort(rank, kind="stable"), int(cuts[np.abs(cuts - n / 2).argmin()])
    second = walk.vectors[:, 1]
    # The sign of an eigenvector is arbitrary. A positive sum of cubes fixes it for any order of the elements.
    second = second if (second**3).sum() >= 0 else -second
    return np.argsort(second, kind="stable"), (n + 1) // 2
