"""The generator of tensors with planted trees."""

from __future__ import annotations

import numpy as np

from attngeo.organization import Tree, expand, planted
from attngeo.organization.planted import _fields


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


def test_a_field_has_the_variance_of_its_levels():
    """On a tree of pairs and single elements, Σ_j 0.55^(2j) over the levels below the root."""
    tree = Tree([[0] * 6000, np.arange(6000) // 2, range(6000)])
    fields = _fields(tree, np.random.default_rng(0))
    assert fields.shape == (6000, 6)
    np.testing.assert_allclose(fields.var(0), 0.55**2 + 0.55**4, rtol=0.1)
    pairs = fields.reshape(3000, 2, 6)
    np.testing.assert_allclose((pairs[:, 0] * pairs[:, 1]).mean(0), 0.55**2, rtol=0.15)  # what both share
