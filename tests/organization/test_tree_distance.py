"""The tree distance, compared with its formula on every implementation, and its properties as a metric."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngeo.errors import InputError
from attngeo.organization import Tree, tree_distance
from tests.organization.random_trees import random_tree

torch = pytest.importorskip("torch")


def array_and_trees(shape, seed, lopsided=False):
    rng = np.random.default_rng(seed)
    trees = {axis: random_tree(n, seed + axis, lopsided) for axis, n in enumerate(shape)}
    return rng.standard_normal(shape) + 3.0, trees


@lru_cache(maxsize=64)
def weighted_means(tree, alpha, beta):
    """Return [folders, n]: per folder of every level, the row that takes the mean over it, times its weight w(F)."""
    rows = []
    for level, labels in enumerate(tree.levels):
        for label in range(labels.max() + 1):
            inside = labels == label
            weight = inside.mean() ** beta * 2.0 ** (-level * alpha)
            rows.append(weight * inside / inside.sum())
    return np.asarray(rows)


def distance_by_formula(array, axis, trees, alpha, beta):
    """Return Σ w(F₁) w(F₂) |mean u − mean v| over all folders of all levels, none merged, by dense products."""
    points = np.moveaxis(array, axis, 0)
    for other in [a for a in range(array.ndim) if a != axis]:
        points = np.tensordot(points, weighted_means(trees[other], alpha, beta), (1, 1))  # [n, ..., folders]
    points = points.reshape(len(points), -1)  # [n, folders · folders]
    return np.abs(points[:, None] - points[None, :]).sum(2)


@given(
    shape=st.lists(st.integers(1, 13), min_size=2, max_size=3),
    seed=st.integers(0, 10**6),
    alpha=st.sampled_from([0.0, 1.0, 0.6]),
    beta=st.sampled_from([1.0, 0.0, 0.4]),
    lopsided=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_tree_distance_is_its_formula(shape, seed, alpha, beta, lopsided):
    array, trees = array_and_trees(shape, seed, lopsided)
    for axis in range(len(shape)):
        others = {a: tree for a, tree in trees.items() if a != axis}
        expected = distance_by_formula(array, axis, others, alpha, beta)
        scale = max(expected.max(), 1e-300)
        for values in (array, torch.tensor(array), np.asfortranarray(array)):
            np.testing.assert_allclose(
                tree_distance(values, axis, others, alpha, beta) / scale, expected / scale, atol=1e-12
            )


def test_tree_distance_is_a_metric_between_different_slices():
    array, trees = array_and_trees((24, 15, 9), 2)
    array[7], array[20] = array[3], array[3]
    distance = tree_distance(array, 0, trees)
    np.testing.assert_array_equal(distance, distance.T)
    assert (np.diag(distance) == 0).all() and distance.min() >= 0
    assert distance[3, 7] == distance[7, 20] == 0
    np.testing.assert_array_equal(distance[3], distance[7])  # equal slices have equal distances, to the last bit
    through = (distance[:, :, None] + distance[None, :, :]).min(1)
    assert (distance <= through * (1 + 1e-12) + 1e-12).all()
    different = ~np.isin(np.arange(24), (3, 7, 20))
    assert (distance[np.ix_(different, different)] + np.eye(different.sum()) > 0).all()


def test_a_large_offset_and_float32_keep_the_precision():
    array, trees = array_and_trees((20, 16, 8), 4)
    expected = distance_by_formula(array, 0, trees, 0.0, 1.0)
    np.testing.assert_allclose(tree_distance(array + 1e6, 0, trees), expected, rtol=1e-8)
    single = array.astype(np.float32)
    np.testing.assert_allclose(
        tree_distance(single, 0, trees), distance_by_formula(single.astype(float), 0, trees, 0.0, 1.0), rtol=1e-12
    )


def test_bad_input_raises_an_error_that_names_it():
    array, trees = array_and_trees((6, 5, 4), 0)
    for arguments, message in (
        ((array, 0, {1: trees[1]}), "tree of axis 2 is missing"),
        ((array, 0, {1: trees[1], 2: Tree.dyadic(5)}), "has 5 elements, the array has 4"),
        ((array, 3, trees), "axis 3"),
        ((array[0, 0], 0, trees), "expected 2-D or 3-D"),
        ((np.zeros((3, 0)), 0, trees), "axis 1 is empty"),
        ((np.full((3, 2), np.nan), 0, {1: Tree.dyadic(2)}), "NaN or Inf"),
        ((np.array([[1.0, np.inf], [-np.inf, 0.0]]), 0, {1: Tree.dyadic(2)}), "NaN or Inf"),
        ((np.array([["a"]]), 0, {1: Tree.dyadic(1)}), "real numbers"),
        ((np.ones((2, 2), complex), 0, {1: Tree.dyadic(2)}), "real numbers"),
    ):
        with pytest.raises(InputError, match=message):
            tree_distance(*arguments)


@pytest.mark.parametrize(("alpha", "beta"), [(1e6, 0.0), (-1e4, 0.0), (0.0, -1e6), (0.0, 400.0)])
def test_weights_that_overflow_are_named(alpha, beta):
    trees = {1: Tree.dyadic(12), 2: Tree.dyadic(6)}
    with pytest.raises(InputError, match=f"weights with alpha={alpha} and beta={beta} overflow"):
        tree_distance(np.ones((3, 12, 6)), 0, trees, alpha, beta)


def test_finite_numbers_whose_sum_overflows_are_accepted():
    large = np.full((2, 2), 3e38, np.float32)
    assert tree_distance(large, 0, {1: Tree.dyadic(2)}).max() == 0
