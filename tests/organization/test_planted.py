"""The generator of tensors with planted trees."""

from __future__ import annotations

import numpy as np

from attngeo.organization import expand, planted


def test_planted_tensors_follow_their_description():
    array, trees = planted((40, 30, 20), 7)
    assert array.shape == (40, 30, 20) and [tree.size for tree in trees] == [40, 30, 20]
    for tree in trees:
        for above, below in zip(tree.levels, tree.levels[1:], strict=False):
            for folder in range(above.max() + 1):
                sizes = np.unique(below[above == folder], return_counts=True)[1]
                assert len(sizes) == min(2, (above == folder).sum())
                if len(sizes) == 2:
                    assert 0.35 * sizes.sum() - 0.5 <= sizes.min()
    assert planted((40, 30, 20), 7)[1] == trees
    assert not np.array_equal(planted((40, 30, 20), 8)[0], array)
    own = expand(array, trees).entropy()
    rolled = expand(array, tuple(tree.permuted(np.roll(np.arange(tree.size), 1)) for tree in trees)).entropy()
    assert own < 0.5 * rolled
