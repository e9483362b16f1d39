"""Tree distances against the formula, on every path, and as a metric; the affinities beside them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization import (
    Tree,
    affinity_from_distance,
    cosine_affinity,
    gaussian_affinity,
    tree_distance,
)
from attngeo.organization.geometry.l1 import l1_between, l1_distances, l1_norm
from attngeo.organization.geometry.tree_distance import SliceDistances
from attngeo.organization.kernels import dispatch
from tests.organization.made_arrays import direct_distance, random_tree

torch = pytest.importorskip("torch")


def case(shape, seed, lopsided=False):
    rng = np.random.default_rng(seed)
    trees = {axis: random_tree(n, seed + axis, lopsided) for axis, n in enumerate(shape)}
    return rng.standard_normal(shape) + 3.0, trees


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(dispatch, "numba_kernels", lambda: None)


@given(
    shape=st.lists(st.integers(1, 13), min_size=2, max_size=3),
    seed=st.integers(0, 10**6),
    alpha=st.sampled_from([0.0, 1.0, 0.6]),
    beta=st.sampled_from([1.0, 0.0, 0.4]),
    lopsided=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_is_the_formula_on_every_path(shape, seed, alpha, beta, lopsided):
    array, trees = case(shape, seed, lopsided)
    for axis in range(len(shape)):
        others = {a: tree for a, tree in trees.items() if a != axis}
        wanted = direct_distance(array, axis, others, alpha, beta)
        scale = max(wanted.max(), 1e-300)
        for values in (array, torch.tensor(array), np.asfortranarray(array)):
            np.testing.assert_allclose(
                tree_distance(values, axis, others, alpha, beta) / scale, wanted / scale, atol=1e-12
            )


def test_plain_path_agrees(plain):
    array, trees = case((17, 23, 11), 5)
    for axis in range(3):
        np.testing.assert_allclose(
            tree_distance(array, axis, trees, 0.3, 0.8), direct_distance(array, axis, trees, 0.3, 0.8), rtol=1e-11
        )


@given(seed=st.integers(0, 10**6), alpha=st.sampled_from([0.0, 1.0, 0.6]), beta=st.sampled_from([1.0, 0.0]))
@settings(max_examples=30, deadline=None)
def test_distances_made_from_those_before_are_the_same(seed, alpha, beta):
    """Trees that share some folders, all, or only the single elements, one after another."""
    rng = np.random.default_rng(seed)
    array = rng.standard_normal((9, 12, 8))
    base = random_tree(12, seed)
    shallower = Tree(np.delete(base.levels, rng.integers(1, base.depth - 1), axis=0)) if base.depth > 2 else base
    swapped = base.permuted(np.r_[1, 0, 2:12])
    deeper = Tree(np.concatenate([base.levels[:1], base.levels]))
    heads = random_tree(8, seed), Tree.dyadic(8)
    distances = SliceDistances(array, 0)
    for first in (base, base, shallower, swapped, deeper, random_tree(12, seed + 1), base):
        for second in heads:
            found = distances.through({1: first, 2: second}, alpha, beta)
            wanted = direct_distance(array, 0, {1: first, 2: second}, alpha, beta)
            np.testing.assert_allclose(found, wanted, atol=1e-12 * wanted.max())


def test_a_metric_up_to_zero_distances():
    array, trees = case((24, 15, 9), 2)
    array[7], array[20] = array[3], array[3]
    distance = tree_distance(array, 0, trees)
    np.testing.assert_array_equal(distance, distance.T)
    assert (np.diag(distance) == 0).all() and distance.min() >= 0
    assert distance[3, 7] == distance[7, 20] == 0
    np.testing.assert_array_equal(distance[3], distance[7])  # equal slices are equal to all others, to the last bit
    through = (distance[:, :, None] + distance[None, :, :]).min(1)
    assert (distance <= through * (1 + 1e-12) + 1e-12).all()
    different = ~np.isin(np.arange(24), (3, 7, 20))
    assert (distance[np.ix_(different, different)] + np.eye(different.sum()) > 0).all()


def test_no_number_of_threads_changes_a_digit(monkeypatch):
    array, trees = case((50, 41, 33), 8)
    found = []
    for count in (1, 2, 3, 7):
        monkeypatch.setattr(threads, "thread_count", lambda count=count: count)
        found.append([tree_distance(array, axis, trees) for axis in range(3)] + [cosine_affinity(array, 0)])
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_far_centre_and_float32_do_no_harm():
    array, trees = case((20, 16, 8), 4)
    wanted = direct_distance(array, 0, trees, 0.0, 1.0)
    np.testing.assert_allclose(tree_distance(array + 1e6, 0, trees), wanted, rtol=1e-8)
    single = array.astype(np.float32)
    np.testing.assert_allclose(
        tree_distance(single, 0, trees), direct_distance(single.astype(float), 0, trees, 0.0, 1.0), rtol=1e-12
    )


def test_what_does_not_fit_says_why():
    array, trees = case((6, 5, 4), 0)
    for arguments, says in (
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
        with pytest.raises(InputError, match=says):
            tree_distance(*arguments)
    huge = np.full((2, 2), 3e38, np.float32)  # finite, though its sum is not
    assert tree_distance(huge, 0, {1: Tree.dyadic(2)}).max() == 0


@given(n=st.integers(1, 20), k=st.integers(1, 700), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_l1_distances(n, k, seed):
    points = np.random.default_rng(seed).standard_normal((n, k))
    wanted = cdist(points, points, "cityblock")
    np.testing.assert_allclose(l1_distances(points), wanted, atol=1e-12 * k)
    np.testing.assert_allclose(l1_distances(torch.tensor(points)), wanted, atol=1e-12 * k)
    rows, columns = np.arange(0, n, 2), np.arange(n)[::-1].copy()
    np.testing.assert_allclose(l1_between(points, rows, columns), wanted[np.ix_(rows, columns)], atol=1e-12 * k)
    assert l1_norm(points) == pytest.approx(np.abs(points).sum(), rel=1e-12)


def test_l1_distances_plain(plain):
    points = np.random.default_rng(0).standard_normal((9, 50))
    wanted = cdist(points, points, "cityblock")
    np.testing.assert_allclose(l1_distances(points), wanted)
    np.testing.assert_allclose(l1_between(points, np.array([1, 4]), np.arange(9)), wanted[[1, 4]])


def test_affinity_from_distance():
    distance = np.array([[0.0, 2.0, 4.0], [2.0, 0.0, 6.0], [4.0, 6.0, 0.0]])
    np.testing.assert_allclose(affinity_from_distance(distance), np.exp(-distance / 2.0))
    np.testing.assert_allclose(affinity_from_distance(distance, 0.5), np.exp(-distance / 1.0))
    mostly_zero = np.zeros((5, 5))
    mostly_zero[0, 1:] = mostly_zero[1:, 0] = 3.0
    np.testing.assert_allclose(affinity_from_distance(mostly_zero), np.exp(-mostly_zero / 3.0))
    np.testing.assert_array_equal(affinity_from_distance(np.zeros((4, 4))), np.ones((4, 4)))
    for bad, says in ((-np.ones((2, 2)), "negative"), (np.ones((2, 3)), "square")):
        with pytest.raises(InputError, match=says):
            affinity_from_distance(bad)
    with pytest.raises(InputError, match="epsilon"):
        affinity_from_distance(distance, 0.0)


def test_gaussian_affinity_is_its_formula():
    rng = np.random.default_rng(3)
    for n in (2, 4, 30):
        array = rng.standard_normal((6, n, 5)) + 100.0
        slices = np.moveaxis(array, 1, 0).reshape(n, -1)
        distance = cdist(slices, slices)
        nearest = np.sort(distance + np.diag(np.full(n, np.inf)), 1)[:, : min(5, n - 1)]
        sigma = np.median(nearest, 1)
        wanted = np.exp(-(distance**2) / np.outer(sigma, sigma))
        np.testing.assert_allclose(gaussian_affinity(array, 1), wanted, rtol=1e-9)
        np.testing.assert_allclose(gaussian_affinity(torch.tensor(array), 1), wanted, rtol=1e-9)
    array = np.repeat(rng.standard_normal((3, 4)), (6, 6, 1), axis=0)  # six alike: their own scale is zero
    kernel = gaussian_affinity(array, 0)
    assert np.isfinite(kernel).all() and (kernel[:6, :6] == 1).all() and kernel.min() < 1
    np.testing.assert_array_equal(gaussian_affinity(np.ones((4, 3)), 0), np.ones((4, 4)))
    close = np.ones((6, 3)) + 1e-9 * rng.standard_normal((6, 3))  # nearly alike is not alike
    assert gaussian_affinity(close, 0).min() < 0.9


def test_cosine_affinity_of_zeros_negatives_and_twins():
    array = np.array([[1.0, 2.0], [0.0, 0.0], [-1.0, -2.0], [0.0, 0.0], [1.0, 2.0], [2.0, 4.0]])
    affinity = cosine_affinity(array, 0)
    np.testing.assert_allclose(affinity[0], [1, 0, 0, 0, 1, 1], atol=1e-15)
    np.testing.assert_array_equal(affinity[1], [0, 1, 0, 1, 0, 0])
    np.testing.assert_array_equal(affinity[0], affinity[4])
    everywhere = cosine_affinity(-np.abs(array) - 1, 0)
    assert everywhere.min() > 0  # all negative is all alike in sign
