"""The paraproduct: its exact identity, linear functions, the order and smoothness of its residual, stored results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from attngeo.errors import InputError
from attngeo.organization import Tree, expand, paraproduct, planted
from tests.organization.random_trees import random_tree

GOLDEN = Path(__file__).parents[1] / "goldens" / "averages.npz"
CUBIC = (lambda x: x**3 - x, lambda x: 3 * x**2 - 1, lambda x: 6 * x)


@given(rows=st.integers(1, 20), columns=st.integers(1, 20), seed=st.integers(0, 10**6), lopsided=st.booleans())
@settings(max_examples=40, deadline=None)
def test_telescoping_identity_on_any_trees(rows, columns, seed, lopsided):
    f = np.random.default_rng(seed).standard_normal((rows, columns))
    trees = random_tree(rows, seed, lopsided), random_tree(columns, seed + 1, lopsided)
    for function in ("exp", "softmax", CUBIC):
        product = paraproduct(f, *trees, function)
        np.testing.assert_allclose(sum(term.exact for term in product.terms()), product.exact, atol=1e-10)
        parts = sum(term.approximation for term in product.terms())
        np.testing.assert_allclose(parts, product.approximation, atol=1e-10)
        np.testing.assert_allclose(product.exact - product.approximation, product.residual, atol=1e-12)


@given(rows=st.integers(1, 20), columns=st.integers(1, 20), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_linear_functions_leave_no_residual(rows, columns, seed):
    f = np.random.default_rng(seed).standard_normal((rows, columns))
    linear = (lambda x: 2.5 * x - 1, lambda x: np.full_like(x, 2.5), np.zeros_like)
    product = paraproduct(f, random_tree(rows, seed), random_tree(columns, seed + 1), linear)
    np.testing.assert_allclose(product.approximation, 2.5 * f - 1, atol=1e-12)
    assert np.abs(product.residual).max() < 1e-12


def test_the_softmax_of_large_logits_does_not_overflow():
    f, (rows, columns) = planted((12, 9), 0)
    np.testing.assert_allclose(paraproduct(f + 1000.0, rows, columns, "softmax").exact, softmax(f, axis=1))


@pytest.mark.parametrize("function", ["exp", "softmax"])
def test_the_residual_of_a_smooth_matrix_is_smoother_than_the_matrix(function):
    x = (np.arange(256) + 0.5) / 256
    waves = [np.cos(np.pi * k * x + 0.3 * k) / k**1.5 for k in range(1, 40)]
    rng, trees = np.random.default_rng(0), (Tree.dyadic(256), Tree.dyadic(256))
    f = sum(rng.standard_normal() * np.outer(a, b) for a in waves for b in waves)  # varies slowly along both axes
    own, rest = (expand(one, trees).holder for one in (f, paraproduct(f, *trees, function).residual))
    assert rest.exponent > own.exponent + 0.3
    assert rest.exponent - own.exponent > 6 * np.hypot(rest.error, own.error)


def test_the_residual_is_of_second_order():
    """For f = εg the residual shrinks as ε² while A(f) − A(P_00 f) shrinks as ε."""
    g, (rows, columns) = planted((40, 33), 2)
    sizes = []
    for epsilon in (1e-1, 1e-2, 1e-3):
        product = paraproduct(epsilon * g, rows, columns)
        whole = product.exact - np.exp(product.mean(0, 0))
        sizes.append((np.abs(product.residual).max(), np.abs(whole).max()))
    residual, whole = np.log10(np.asarray(sizes)).T
    np.testing.assert_allclose(np.diff(residual), -2, atol=0.15)
    np.testing.assert_allclose(np.diff(whole), -1, atol=0.15)


def test_sums_equal_the_golden_ones():
    with np.load(GOLDEN) as golden:
        tree = Tree.dyadic(64)
        product = paraproduct(golden["f"], tree, tree)
        for key in golden.files:
            if key.startswith("avg"):
                x, y = int(key[5]), int(key[8])
                np.testing.assert_allclose(product.mean(y, x), golden[key], rtol=1e-8)
        inner = [term for term in product.terms() if {term.row, term.column} <= {1, 2, 3, 4}]
        assert len(inner) == 16
        for name, found in (("first", sum(t.first for t in inner)), ("second", sum(t.second for t in inner))):
            expected = golden[f"clean_{name}"]
            np.testing.assert_allclose(found, expected, atol=1e-8 * np.abs(expected).max())
        np.testing.assert_allclose(product.exact, golden["exp_f"])
        np.testing.assert_allclose(paraproduct(golden["f"], tree, tree, "softmax").exact, golden["softmax_rows"])


def test_bad_input_raises_an_error_that_names_it():
    tree = Tree.dyadic(4)
    for arguments, message in (
        ((np.zeros((4, 5)), tree, tree), "do not match"),
        ((np.zeros((4, 4)), tree, tree, "tanh"), "'tanh'"),
        ((np.zeros((4, 4)), tree, tree, (np.exp, np.exp)), "first two derivatives"),
        ((np.full((4, 4), np.nan), tree, tree), "NaN"),
        ((np.zeros(4), tree, tree), "expected 2-D"),
        ((np.full((4, 4), 1e3), tree, tree), "exp of 1000 overflows, expected at most 700"),
        ((np.zeros((4, 4)), tree, tree, (np.exp, np.exp, 2)), "first two derivatives"),
    ):
        with pytest.raises(InputError, match=message):
            paraproduct(*arguments)
    assert "residual" in repr(paraproduct(np.ones((4, 4)), tree, tree))
