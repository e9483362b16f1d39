"""Trees: which labels make a tree, its distinct folders, permuted trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngeo.errors import InputError
from attngeo.organization import Tree
from tests.organization.random_trees import random_tree


def test_labels_are_numbered_by_smallest_element():
    tree = Tree([[7, 7, 7, 7], [3, -1, 3, -1], [9, 2, 4, 30]])
    np.testing.assert_array_equal(tree.levels, [[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]])
    np.testing.assert_array_equal(tree.order, [0, 2, 1, 3])
    assert repr(tree) == "Tree(n=4, folders 1 · 2 · 4)"
    assert tree == Tree(tree.levels) and hash(tree) == hash(Tree(tree.levels))
    assert tree != Tree(tree.levels, [1, 3, 0, 2])
    with pytest.raises(ValueError):
        tree.levels[0, 0] = 1


@pytest.mark.parametrize(
    ("levels", "order", "message"),
    [
        ([0, 1], None, "expected integer levels"),
        ([[0, 1], [2]], None, "rows of different lengths"),
        ([[0.0, 0.0], [0.0, 1.0]], None, "expected integer levels"),
        (np.zeros((2, 0), int), None, "expected integer levels"),
        ([[0, 1], [0, 1]], None, "level 0 must be one folder"),
        ([[0, 0, 0], [0, 0, 1]], None, "must be 3 single elements"),
        ([[0] * 4, [0, 0, 1, 1], [0, 1, 1, 2], [0, 1, 2, 3]], None, "level 2 does not refine level 1"),
        ([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]], [0, 1, 2, 3], "not depth first"),
        ([[0, 0], [0, 1]], [0, 0], "permutation"),
    ],
)
def test_labels_that_are_no_tree_raise_an_error_that_message_why(levels, order, message):
    with pytest.raises(InputError, match=message):
        Tree(levels, order)


def test_the_smallest_folders_contain_no_other_folder():
    tree = Tree([[0] * 7, [0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 2, 2, 3, 3], [0, 1, 2, 3, 4, 5, 6]])
    assert tree.smallest_folders() == [[0, 1], [3, 4], [5, 6]]
    assert Tree([[0, 0, 0], [0, 1, 2]]).smallest_folders() == [[0, 1, 2]] and Tree([[0]]).smallest_folders() == []


def test_dyadic_trees_halve_the_elements_in_order():
    assert Tree.dyadic(5).levels.tolist() == [[0] * 5, [0, 0, 0, 1, 1], [0, 0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert Tree.dyadic(1).levels.tolist() == [[0]]
    with pytest.raises(InputError):
        Tree.dyadic(0)


def test_closeness_is_the_share_of_the_smallest_common_folder():
    tree = Tree([[0] * 5, [0, 0, 1, 1, 1], [0, 0, 1, 1, 2], range(5)])
    two, three, all_five = 2 / 5, 3 / 5, 1.0
    expected = [
        [1 / 5, two, all_five, all_five, all_five],
        [two, 1 / 5, all_five, all_five, all_five],
        [all_five, all_five, 1 / 5, two, three],
        [all_five, all_five, two, 1 / 5, three],
        [all_five, all_five, three, three, 1 / 5],
    ]
    np.testing.assert_allclose(tree.closeness(), expected)


@given(n=st.integers(1, 30), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_permuted_tree_lists_the_same_elements_in_the_same_order(n, seed):
    """Its order breaks ties of the Haar basis, so the coefficients of a reordered array do not change."""
    rng = np.random.default_rng(seed)
    tree = random_tree(n, seed)
    tree = Tree(tree.levels, tree.order[::-1])  # another depth-first order than the default
    order = rng.permutation(n)
    moved = tree.permuted(order)
    np.testing.assert_array_equal(order[moved.order], tree.order)
    values = rng.standard_normal(n)
    found, expected = (np.sort(np.abs(t.haar().T @ x)) for t, x in ((moved, values[order]), (tree, values)))
    np.testing.assert_allclose(found, expected, atol=1e-12)
