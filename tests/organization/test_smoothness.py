"""The mixed-Hölder exponent of coefficients that were made to have a given one."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.errors import InputError
from attngeo.organization import Tree
from attngeo.organization.coefficients import holder
from attngeo.organization.haar import forward
from tests.organization.random_trees import random_tree


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(64, 64), (32, 32, 16), (60, 47)])
def test_the_exponent_of_the_coefficients_is_recovered(alpha, shape):
    trees = tuple(Tree.dyadic(n) if n & (n - 1) == 0 else random_tree(n, n) for n in shape)
    support = np.ones(())
    for tree in trees:
        support = np.multiply.outer(support, tree.rotations.share)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], shape)
    fit = holder(signs * support ** (alpha + 0.5), trees)
    for line in (fit.rms, fit.high):
        # Irregular trees have folders of several sizes per bin, so the exponent is only within the error of the fit.
        assert line.exponent == pytest.approx(alpha, abs=3 * line.error + 1e-9)
    assert fit.error < 0.02
    np.testing.assert_allclose(fit.line(fit.support), fit.log_rms, atol=0.1)
    assert fit.counts.min() >= 8 and fit.counts.sum() <= np.prod([n - 1 for n in shape])
    noise = holder(np.random.default_rng(1).standard_normal(shape), trees)
    assert noise.exponent == pytest.approx(-0.5, abs=4 * noise.error + 0.02)


def test_the_fit_is_its_formula_step_by_step():
    """On irregular trees, whose supports are no powers of two, and with noise, so that the line misses the bins."""
    rng = np.random.default_rng(2)
    trees = (random_tree(45, 3), random_tree(28, 4))
    support = np.multiply.outer(*(tree.rotations.share for tree in trees))
    coefficients = support * rng.standard_normal(support.shape)
    fit = holder(coefficients, trees)
    logs, sizes = np.log2(support[1:, 1:]).ravel(), np.abs(coefficients[1:, 1:]).ravel()
    bins = np.floor(logs + 1e-9)
    inside = [bins == one for one in np.unique(bins) if (bins == one).sum() >= 8]
    assert len(inside) > 4 and fit.counts.tolist() == [some.sum() for some in inside]
    np.testing.assert_allclose(fit.support, [logs[some].mean() for some in inside])
    np.testing.assert_allclose(fit.log_rms, [np.log2(np.sqrt(np.mean(sizes[some] ** 2))) for some in inside])
    np.testing.assert_allclose(fit.log_high, [np.log2(np.quantile(sizes[some], 0.95)) for some in inside])
    for line, values in ((fit.rms, fit.log_rms), (fit.high, fit.log_high)):
        (slope, _), covariance = np.polyfit(fit.support, values, 1, w=np.sqrt(fit.counts), cov=True)
        assert (line.slope, line.error) == pytest.approx((slope, np.sqrt(covariance[0, 0])))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["constant", "additive"])
def test_an_array_without_mixed_variation_has_no_exponent(kind, dtype):
    """Its coefficients without constant factors are rounding alone, whose size grows with the support too."""
    shape = (40, 36, 12)
    trees = tuple(random_tree(n, n) for n in shape)
    array = np.full(shape, 3.3)
    if kind == "additive":
        rng = np.random.default_rng(0)
        array = array + rng.normal(size=(40, 1, 1)) + rng.normal(size=(36, 1)) + rng.normal(size=12)
    fit = holder(forward(array.astype(dtype), dict(enumerate(trees))), trees)
    assert np.isnan(fit.exponent) and len(fit.counts) == 0
    array += 1e-3 * np.random.default_rng(1).normal(size=shape)
    noise = holder(forward(array.astype(dtype), dict(enumerate(trees))), trees)
    assert noise.exponent == pytest.approx(-0.5, abs=4 * noise.error + 0.02)


def test_constants_and_rounding_are_left_out():
    tree = Tree.dyadic(64)
    support = np.multiply.outer(tree.rotations.share, tree.rotations.share)
    coefficients = support**1.5
    changed = coefficients.copy()
    changed[0], changed[:, 0] = 1e9, 1e9
    assert holder(changed, (tree, tree)).exponent == pytest.approx(1.0)
    changed = np.where(support < 1e-3, 1e-30, coefficients)
    fit = holder(changed, (tree, tree))
    assert fit.exponent == pytest.approx(1.0) and fit.support.min() > -11
    assert np.isnan(holder(np.ones((2, 2)), (Tree.dyadic(2),) * 2).exponent)
    with pytest.raises(InputError, match="do not match"):
        holder(np.ones((3, 2)), (Tree.dyadic(2),) * 2)
