"""Haar trees: their cost is the l1 norm of the Haar coefficients, and equal rows are joined first."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.errors import InputError
from attngeo.organization import Tree, expand, planted
from attngeo.organization.grow import expanded_slices, haar_tree
from attngeo.organization.haar import forward


def test_the_cost_of_a_haar_tree_is_the_l1_norm_of_the_coefficients():
    array, trees = planted((20, 14, 9), 5)
    for axis in range(3):
        tree, l1 = haar_tree(expanded_slices(array, axis, dict(enumerate(trees))))
        replaced = {**dict(enumerate(trees)), axis: tree}
        assert l1 == pytest.approx(expand(array, replaced).entropy(), rel=1e-10)
        assert l1 <= 1.02 * expand(array, trees).entropy()


def test_equal_rows_are_joined_first():
    repeated = np.repeat(np.random.default_rng(0).standard_normal((4, 6)), 5, axis=0)
    tree, _ = haar_tree(repeated)
    np.testing.assert_array_equal(tree.levels[-2], np.repeat(np.arange(4), 5))


def test_rows_may_be_means_of_folders():
    means = np.random.default_rng(1).standard_normal((7, 40))
    sizes = np.array([4, 1, 2, 2, 7, 1, 3])
    tree, l1 = haar_tree(means, sizes)
    whole = Tree(np.concatenate([np.repeat(tree.levels, sizes, axis=1), [np.arange(20)]]))
    assert l1 == pytest.approx(np.abs(forward(np.repeat(means, sizes, axis=0), {0: whole})).sum(), rel=1e-12)


def test_haar_trees_of_one_row_and_of_equal_rows():
    assert haar_tree(np.ones((1, 3)))[0].levels.tolist() == [[0]]
    assert haar_tree(np.ones((8, 3)))[0].widths == (1, 8)


def test_the_slices_are_left_as_they_were_and_whole_numbers_are_not_rounded():
    slices = np.random.default_rng(2).integers(0, 9, (6, 5))
    before = slices.copy()
    first, l1 = haar_tree(slices)
    np.testing.assert_array_equal(slices, before)
    for same in (slices.astype(np.float64), np.asfortranarray(slices), slices.tolist(), slices.astype(np.float32)):
        again, l1_again = haar_tree(same)
        assert again == first and l1_again == pytest.approx(l1, rel=1e-12)


@pytest.mark.parametrize(
    ("slices", "sizes", "message"),
    [
        (np.full((3, 2), np.nan), None, "slices: contains NaN"),
        (np.ones(3), None, "slices: expected 2-D"),
        (np.ones((3, 2)), [1, 2], "sizes: expected 3 positive numbers"),
        (np.ones((3, 2)), [1, 2, 0], "sizes: expected 3 positive numbers"),
    ],
)
def test_bad_slices_and_sizes_are_named(slices, sizes, message):
    with pytest.raises(InputError, match=message):
        haar_tree(slices, sizes)
