"""Random partition trees of any shape, for the tests."""

from __future__ import annotations

import numpy as np

from attngeo.organization import Tree


def random_tree(n, seed, lopsided=False):
    """Return a tree whose folders are split at random until all are single elements.

    Some folders stay unsplit on some levels, so the tree has chains of only children and levels that repeat.

    lopsided: split off one element at a time, which makes a deep tree; otherwise a folder splits into up to four
    """
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
