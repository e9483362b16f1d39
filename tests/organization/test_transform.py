"""The Haar transform: orthogonal, invertible, equal to the dense basis for any tree, axis, library and precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization import Tree, kernels
from attngeo.organization.haar import forward, inverse
from tests.organization.random_trees import random_tree

torch = pytest.importorskip("torch")


def dense_basis(tree):
    """Return the Haar basis as columns, built directly from its definition."""
    n, position = tree.size, np.argsort(tree.order)
    columns = [np.full(n, n**-0.5)]
    for above, below in zip(tree.levels, tree.levels[1:], strict=False):
        for folder in range(above.max() + 1):
            children = [np.flatnonzero(below == label) for label in np.unique(below[above == folder])]
            children.sort(key=lambda child: (-len(child), -position[child].min()))
            for i, child in enumerate(children[:-1]):
                rest = np.concatenate(children[i + 1 :])
                column = np.zeros(n)
                column[child], column[rest] = 1 / len(child), -1 / len(rest)
                columns.append(column / np.linalg.norm(column))
    return np.stack(columns, 1)


shapes = st.lists(st.sampled_from([1, 2, 3, 5, 7, 8, 13, 17]), min_size=1, max_size=3)


@pytest.fixture(params=["numba", "numpy"])
def implementation(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "cpu", lambda: None)


@given(n=st.integers(1, 40), seed=st.integers(0, 10**6), lopsided=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_basis_follows_the_definition_and_is_orthonormal(n, seed, lopsided):
    tree = random_tree(n, seed, lopsided)
    order = np.concatenate([np.flatnonzero(tree.levels[1] == f)[::-1] for f in range(tree.widths[1])]) if n > 1 else [0]
    trees = [tree]
    if tree.depth == 3:  # any order within the folders of level 1 is then depth first
        trees.append(Tree(tree.levels, order))
    for each in trees:
        basis = each.haar()
        np.testing.assert_allclose(basis, dense_basis(each), atol=1e-13)
        np.testing.assert_allclose(basis.T @ basis, np.eye(n), atol=1e-13)


@given(shape=shapes, seed=st.integers(0, 10**6), lopsided=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_transform_keeps_the_energy_and_has_an_inverse(shape, seed, lopsided):
    array = np.random.default_rng(seed).standard_normal(shape)
    trees = {axis: random_tree(n, seed + axis, lopsided) for axis, n in enumerate(shape)}
    expected = array
    for axis, tree in trees.items():
        expected = np.moveaxis(np.tensordot(dense_basis(tree).T, expected, (1, axis)), 0, axis)
    original = array.copy()
    for values in (array, torch.tensor(array)):
        coefficients = forward(values, trees)
        np.testing.assert_allclose(np.asarray(coefficients), expected, atol=1e-12)
        np.testing.assert_allclose(float((coefficients**2).sum()), (array**2).sum(), rtol=1e-12)
        np.testing.assert_allclose(np.asarray(inverse(coefficients, trees)), array, atol=1e-12)
    np.testing.assert_array_equal(array, original)  # the input is not changed


def test_every_axis_and_memory_layout(implementation):
    rng = np.random.default_rng(1)
    array = rng.standard_normal((7, 30, 11, 3))
    for axis in range(4):
        tree = random_tree(array.shape[axis], axis)
        expected = np.moveaxis(np.tensordot(tree.haar().T, array, (1, axis)), 0, axis)
        for view in (array, np.asfortranarray(array), array[::-1][::-1]):
            np.testing.assert_allclose(forward(view, {axis: tree}), expected, atol=1e-12)
            np.testing.assert_allclose(forward(view, {axis - 4: tree}), expected, atol=1e-12)
            np.testing.assert_allclose(inverse(forward(view, {axis: tree}), {axis: tree}), array, atol=1e-12)


def test_float32_stays_float32(implementation):
    tree = random_tree(50, 0)
    array = np.random.default_rng(0).standard_normal((50, 40)).astype(np.float32)
    coefficients = forward(array, {0: tree})
    assert coefficients.dtype == np.float32
    np.testing.assert_allclose(coefficients, forward(array.astype(float), {0: tree}), atol=1e-5)
    np.testing.assert_allclose(inverse(coefficients, {0: tree}), array, atol=1e-5)
    assert forward(torch.tensor(array), {0: tree}).dtype == torch.float32


def test_the_number_of_threads_changes_no_digit(monkeypatch):
    array = np.random.default_rng(2).standard_normal((90, 130, 70))
    trees = {axis: random_tree(n, axis) for axis, n in enumerate(array.shape)}
    results = []
    for count in (1, 2, 5):
        monkeypatch.setattr(threads, "thread_count", lambda count=count: count)
        results.append(forward(array, trees))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_a_tree_of_another_size_raises_an_error():
    with pytest.raises(InputError, match="has 5 elements, the array has 4"):
        forward(np.zeros((4, 4)), {1: Tree.dyadic(5)})
    with pytest.raises(InputError, match="axis 2"):
        forward(np.zeros((4, 4)), {2: Tree.dyadic(4)})
