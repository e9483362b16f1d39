"""Random trees for the tests: any depth, any shape, single-child chains included."""

from __future__ import annotations

import numpy as np

from attngeo.organization import Tree


def random_tree(n: int, seed: int, lopsided: bool = False) -> Tree:
    """Cut folders at random until all are single; some levels repeat, some folders keep whole for a while."""
    rng = np.random.default_rng(seed)
    levels = [np.zeros(n, np.int64)]
    while levels[-1].max() < n - 1:
        above = levels[-1]
        labels = above * (n + 1)
        for folder in range(int(above.max()) + 1):
            members = rng.permutation(np.flatnonzero(above == folder))
            if len(members) == 1 or rng.random() < 0.15:
                continue
            if lopsided:
                labels[members[:1]] += 1
            else:
                labels[members] += rng.integers(0, rng.integers(2, 5), len(members))
        levels.append(np.unique(labels, return_inverse=True)[1])
    return Tree(np.stack(levels))


def direct_distance(array: np.ndarray, axis: int, trees: dict[int, Tree], alpha: float, beta: float) -> np.ndarray:
    """The formula word for word: all folders of all levels, one mean at a time."""
    slices = np.moveaxis(array, axis, 0)
    others = [a for a in range(array.ndim) if a != axis]
    folders = []
    for other in others:
        tree = trees[other]
        found = []
        for level, labels in enumerate(tree.levels):
            for label in range(labels.max() + 1):
                members = np.flatnonzero(labels == label)
                found.append((members, (len(members) / tree.size) ** beta * 2.0 ** (-level * alpha)))
        folders.append(found)
    if len(others) == 1:
        means = [w * slices[:, f].mean(1) for f, w in folders[0]]
    else:
        means = [w * v * slices[:, f][:, :, g].mean((1, 2)) for f, w in folders[0] for g, v in folders[1]]
    points = np.stack(means, 1)
    return np.abs(points[:, None] - points[None, :]).sum(2)
