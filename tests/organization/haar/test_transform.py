"""Haar transforms: orthogonal, exact both ways, on any tree, axis, kind and precision, and never dense."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngeo.errors import InputError
from attngeo.io import threads
from attngeo.organization import Tree
from attngeo.organization.haar.transform import forward, inverse
from attngeo.organization.kernels import dispatch
from tests.organization.made_arrays import random_tree

torch = pytest.importorskip("torch")


def dense_basis(tree: Tree) -> np.ndarray:
    """The definition word for word."""
    n, place = tree.size, np.argsort(tree.order)
    columns = [np.full(n, n**-0.5)]
    for above, below in zip(tree.levels, tree.levels[1:], strict=False):
        for folder in range(above.max() + 1):
            children = [np.flatnonzero(below == label) for label in np.unique(below[above == folder])]
            children.sort(key=lambda child: (-len(child), -place[child].min()))
            for i, child in enumerate(children[:-1]):
                rest = np.concatenate(children[i + 1 :])
                column = np.zeros(n)
                column[child], column[rest] = 1 / len(child), -1 / len(rest)
                columns.append(column / np.linalg.norm(column))
    return np.stack(columns, 1)


shapes = st.lists(st.sampled_from([1, 2, 3, 5, 7, 8, 13, 17]), min_size=1, max_size=3)


@pytest.fixture(params=["compiled", "plain"])
def path(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(dispatch, "numba_kernels", lambda: None)


@given(n=st.integers(1, 40), seed=st.integers(0, 10**6), lopsided=st.booleans())
@settings(max_examples=60, deadline=None)
def test_basis_is_the_definition_and_orthonormal(n, seed, lopsided):
    tree = random_tree(n, seed, lopsided)
    order = np.concatenate([np.flatnonzero(tree.levels[1] == f)[::-1] for f in range(tree.widths[1])]) if n > 1 else [0]
    trees = [tree]
    if tree.depth == 3:  # then any order inside the folders of level 1 is depth first
        trees.append(Tree(tree.levels, order))
    for each in trees:
        basis = each.haar()
        np.testing.assert_allclose(basis, dense_basis(each), atol=1e-13)
        np.testing.assert_allclose(basis.T @ basis, np.eye(n), atol=1e-13)


@given(shape=shapes, seed=st.integers(0, 10**6), lopsided=st.booleans())
@settings(max_examples=60, deadline=None)
def test_energy_and_inverse(shape, seed, lopsided):
    array = np.random.default_rng(seed).standard_normal(shape)
    trees = {axis: random_tree(n, seed + axis, lopsided) for axis, n in enumerate(shape)}
    wanted = array
    for axis, tree in trees.items():
        wanted = np.moveaxis(np.tensordot(dense_basis(tree).T, wanted, (1, axis)), 0, axis)
    kept = array.copy()
    for values in (array, torch.tensor(array)):
        coefficients = forward(values, trees)
        np.testing.assert_allclose(np.asarray(coefficients), wanted, atol=1e-12)
        np.testing.assert_allclose(float((coefficients**2).sum()), (array**2).sum(), rtol=1e-12)
        np.testing.assert_allclose(np.asarray(inverse(coefficients, trees)), array, atol=1e-12)
    np.testing.assert_array_equal(array, kept)  # what was given stays as it was


def test_every_axis_and_layout(path):
    rng = np.random.default_rng(1)
    array = rng.standard_normal((7, 30, 11, 3))
    for axis in range(4):
        tree = random_tree(array.shape[axis], axis)
        wanted = np.moveaxis(np.tensordot(tree.haar().T, array, (1, axis)), 0, axis)
        for view in (array, np.asfortranarray(array), array[::-1][::-1]):
            np.testing.assert_allclose(forward(view, {axis: tree}), wanted, atol=1e-12)
            np.testing.assert_allclose(forward(view, {axis - 4: tree}), wanted, atol=1e-12)
            np.testing.assert_allclose(inverse(forward(view, {axis: tree}), {axis: tree}), array, atol=1e-12)


def test_precision_is_kept(path):
    tree = random_tree(50, 0)
    array = np.random.default_rng(0).standard_normal((50, 40)).astype(np.float32)
    coefficients = forward(array, {0: tree})
    assert coefficients.dtype == np.float32
    np.testing.assert_allclose(coefficients, forward(array.astype(float), {0: tree}), atol=1e-5)
    np.testing.assert_allclose(inverse(coefficients, {0: tree}), array, atol=1e-5)
    assert forward(torch.tensor(array), {0: tree}).dtype == torch.float32


def test_threads_change_no_digit(monkeypatch):
    array = np.random.default_rng(2).standard_normal((90, 130, 70))
    trees = {axis: random_tree(n, axis) for axis, n in enumerate(array.shape)}
    found = []
    for count in (1, 2, 5):
        monkeypatch.setattr(threads, "thread_count", lambda count=count: count)
        found.append(forward(array, trees))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_supports_are_those_of_the_columns():
    tree = random_tree(60, 4)
    turn = tree.rotations
    np.testing.assert_allclose(turn.share, (tree.haar() != 0).mean(0))
    assert turn.level[0] == -1 and (np.diff(turn.level) >= 0).all()
    for rotations in turn.rounds:  # side by side, so no slot twice
        slots = np.concatenate([turn.first[rotations], turn.second[rotations]])
        assert len(np.unique(slots)) == len(slots)


def test_a_tree_of_another_size_says_so():
    with pytest.raises(InputError, match="has 5 elements, the array has 4"):
        forward(np.zeros((4, 4)), {1: Tree.dyadic(5)})
    with pytest.raises(InputError, match="axis 2"):
        forward(np.zeros((4, 4)), {2: Tree.dyadic(4)})
