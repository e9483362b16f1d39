"""The questionnaire equals its steps done one by one, each with the newest trees of the other axes."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.organization import (
    affinity_from_distance,
    binary_tree,
    cosine_affinity,
    expand,
    flexible_tree,
    gaussian_affinity,
    organize,
    tree_distance,
)

BUILDERS = {"flexible": flexible_tree, "binary": binary_tree}
AFFINITIES = {"cosine": cosine_affinity, "gaussian": gaussian_affinity}


@pytest.mark.parametrize(("shape", "axis_order"), [((24, 21, 15), (2, 0, 1)), ((24, 21), (1, 0))])
@pytest.mark.parametrize(("tree", "start"), [("flexible", "cosine"), ("binary", "gaussian")])
def test_every_update_uses_the_newest_trees(shape, axis_order, tree, start):
    """The values are noise, for which the trees of one iteration differ from those of the next."""
    array = np.random.default_rng(5).random(shape)
    alpha, beta, iterations = (0.0, 1.0, 3) if len(shape) == 3 else (1.0, 0.0, 4)
    found = organize(array, tree=tree, start=start, iterations=iterations, refine=False)
    affinities = {axis: AFFINITIES[start](array, axis) for axis in ((0, 1) if len(shape) == 3 else (0,))}
    trees = {axis: BUILDERS[tree](affinity) for axis, affinity in affinities.items()}
    changed = 0
    for step in found.history:
        before = dict(trees)
        for axis in axis_order:
            others = {other: trees[other] for other in axis_order if other != axis}
            affinities[axis] = affinity_from_distance(tree_distance(array, axis, others, alpha, beta))
            trees[axis] = BUILDERS[tree](affinities[axis])
        assert step.trees == tuple(trees[axis] for axis in range(len(shape)))
        assert step.l1 == pytest.approx(expand(array, step.trees).entropy())
        changed += sum(trees[axis] != before.get(axis) for axis in axis_order)
    assert changed > len(axis_order)  # the trees still changed after the first iteration
    for axis, affinity in enumerate(found.affinities):
        np.testing.assert_allclose(affinity, affinities[axis], rtol=1e-9)


def test_the_settings_of_affinities_and_trees_are_used():
    array = np.random.default_rng(6).random((12, 10, 40))
    found = organize(array, iterations=1, epsilon=0.3, constant=8.0, alpha=0.5, beta=0.7, refine=False)
    trees = {axis: flexible_tree(cosine_affinity(array, axis), 8.0) for axis in (0, 1)}
    affinity = affinity_from_distance(tree_distance(array, 2, trees, 0.5, 0.7), 0.3)
    np.testing.assert_allclose(found.affinities[2], affinity, rtol=1e-9)
    assert found.trees[2] == flexible_tree(affinity, 8.0) != flexible_tree(affinity)
