"""Expansions: entropy, sparsity and exponents against brute force, and the controls beside them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.fft import dctn

from attngeo.errors import InputError
from attngeo.organization import Comparison, Expansion, Tree, expand, organize, planted
from attngeo.organization.haar.smoothness import holder
from attngeo.organization.haar.sparsity import sparsity
from attngeo.organization.haar.transform import forward, inverse
from tests.organization.made_arrays import random_tree

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def made():
    array, trees = planted((24, 20, 10), seed=1)
    return array, trees, expand(array, trees)


def test_takes_trees_by_axis_or_in_order(made):
    array, trees, expansion = made
    assert expand(array, dict(enumerate(trees))) == expansion
    np.testing.assert_allclose(expansion.inverse(), array, atol=1e-12)
    np.testing.assert_allclose(expand(torch.tensor(array), trees).coefficients, expansion.coefficients, atol=1e-12)
    assert expand(torch.tensor(array), trees).entropy() == pytest.approx(expansion.entropy())
    with pytest.raises(InputError, match="a tree for each of the 3 axes"):
        expand(array, trees[:2])
    with pytest.raises(InputError, match="has 24 elements, the array has 20"):
        expand(array, (trees[0], trees[0], trees[2]))


def test_entropy(made):
    array, trees, expansion = made
    assert expansion.entropy() == pytest.approx(np.abs(expansion.coefficients).sum())
    norm = np.linalg.norm(array)
    assert expansion.entropy(normalised=True) == pytest.approx(expansion.entropy() / norm)
    heads = [np.abs(forward(array[:, :, h], {0: trees[0], 1: trees[1]})) for h in range(10)]
    np.testing.assert_allclose(expansion.entropy("head"), [h.sum() for h in heads])
    np.testing.assert_allclose(expansion.entropy("head", normalised=True), [h.sum() / np.linalg.norm(h) for h in heads])
    support = np.multiply.outer((trees[0].haar() != 0).mean(0), (trees[1].haar() != 0).mean(0))
    coarse = np.argsort(-support.round(12).ravel(), kind="stable")[:30]
    np.testing.assert_allclose(expansion.entropy("head", coarsest=30), [h.ravel()[coarse].sum() for h in heads])
    assert expansion.entropy(coarsest=1) == pytest.approx(abs(array.sum()) / array.size**0.5)
    assert expand(np.zeros((3, 4)), (Tree.dyadic(3), Tree.dyadic(4))).entropy(normalised=True) == 0
    for arguments, says in (({"of": "layer"}, "of 'layer'"), ({"coarsest": 0}, "coarsest to be at least 1, got 0")):
        with pytest.raises(InputError, match=says):
            expansion.entropy(**arguments)


def test_sparsity_is_brute_force():
    rng = np.random.default_rng(0)
    coefficients = rng.standard_normal((9, 11)) ** 5
    found = sparsity(coefficients)
    energies = np.sort((coefficients**2).ravel())[::-1]
    total = energies.sum()
    for energy, share in found.shares.items():
        count = round(share * 99)
        assert energies[:count].sum() >= energy * total * (1 - 1e-9)
        assert energies[: count - 1].sum() < energy * total
    for count, error in zip(found.counts, found.errors, strict=True):
        assert error == pytest.approx(np.sqrt(energies[count:].sum() / total), abs=1e-12)
    assert (found.counts[0], found.counts[-1], found.errors[-1]) == (1, 99, 0.0)
    assert found.l1 == pytest.approx(np.abs(coefficients).sum()) and found.l2 == pytest.approx(total**0.5)
    one = sparsity(np.eye(1, 50))
    assert one.normalised == 1 and set(one.shares.values()) == {1 / 50} and one.errors[0] == 0
    flat = sparsity(np.ones(1000))
    assert flat.shares[0.9] == pytest.approx(0.9, abs=1e-3) and flat.normalised == pytest.approx(1000**0.5)
    assert sparsity(np.zeros((4, 4))).normalised == 0


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(64, 64), (32, 32, 16), (60, 47)])
def test_exponent_of_coefficients_made_to_have_it(alpha, shape):
    trees = tuple(Tree.dyadic(n) if n & (n - 1) == 0 else random_tree(n, n) for n in shape)
    support = np.ones(())
    for tree in trees:
        support = np.multiply.outer(support, tree.rotations.share)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], shape)
    fit = holder(signs * support ** (alpha + 0.5), trees)
    for line in (fit.rms, fit.high):
        # Folders of all sizes share a bin where trees are irregular: within the error the fit itself gives.
        assert line.exponent == pytest.approx(alpha, abs=3 * line.error + 1e-9)
    assert fit.error < 0.02
    assert fit.counts.min() >= 8 and fit.counts.sum() <= np.prod([n - 1 for n in shape])
    noise = holder(np.random.default_rng(1).standard_normal(shape), trees)
    assert noise.exponent == pytest.approx(-0.5, abs=4 * noise.error + 0.02)


def test_exponent_leaves_out_constants_and_rounding():
    tree = Tree.dyadic(64)
    support = np.multiply.outer(tree.rotations.share, tree.rotations.share)
    coefficients = support**1.5
    spoilt = coefficients.copy()
    spoilt[0], spoilt[:, 0] = 1e9, 1e9
    assert holder(spoilt, (tree, tree)).exponent == pytest.approx(1.0)
    spoilt = np.where(support < 1e-3, 1e-30, coefficients)
    fit = holder(spoilt, (tree, tree))
    assert fit.exponent == pytest.approx(1.0) and fit.support.min() > -11
    assert np.isnan(holder(np.ones((2, 2)), (Tree.dyadic(2),) * 2).exponent)
    with pytest.raises(InputError, match="do not match"):
        holder(np.ones((3, 2)), (Tree.dyadic(2),) * 2)


def test_controls_are_what_they_say_and_worse(made):
    array, _, expansion = made
    comparison = expansion.compare(seed=3)
    names = ["trees", "shuffled axes", "dyadic trees", "cosines per head", "cosines"]
    assert [profile.name for profile in comparison.profiles] == names
    dyadic = tuple(Tree.dyadic(n) for n in array.shape)
    assert comparison["dyadic trees"].sparsity.l1 == pytest.approx(expand(array, dyadic).entropy())
    assert comparison["cosines"].sparsity.l1 == pytest.approx(np.abs(dctn(array, norm="ortho")).sum())
    per_head = sum(np.abs(dctn(array[:, :, h], norm="ortho")).sum() for h in range(array.shape[2]))
    assert comparison["cosines per head"].sparsity.l1 == pytest.approx(per_head)
    own = comparison["trees"]
    for profile in comparison.profiles[1:]:
        assert profile.sparsity.l2 == pytest.approx(own.sparsity.l2)  # all orthonormal
        assert profile.sparsity.normalised > 1.5 * own.sparsity.normalised
        assert profile.sparsity.shares[0.999] > own.sparsity.shares[0.999]
        if profile.holder is not None:
            assert profile.holder.exponent < own.holder.exponent
    assert expansion.compare(seed=3)["shuffled axes"].sparsity == comparison["shuffled axes"].sparsity
    assert expansion.compare(seed=4)["shuffled axes"].sparsity != comparison["shuffled axes"].sparsity
    assert len(str(comparison).splitlines()) == 7 and len(comparison.rows()) == 5
    assert f"{100 * comparison.gain():.1f}% below that of dyadic trees" in str(comparison)
    assert "cosines per head" not in [p.name for p in expand(array[:, :, 0], expansion.trees[:2]).compare().profiles]


def test_what_fitting_alone_gains():
    """Trees fitted to the same values in random places, by the same procedure, beside trees that are not fitted."""
    array, _ = planted((24, 20, 10), seed=1)
    found = organize(array, tree="binary", iterations=2)
    expansion = found.expand()
    comparison = expansion.compare(seed=3)
    assert [profile.name for profile in comparison.profiles[-2:]] == ["permuted: trees", "permuted: dyadic trees"]
    # The permutation is the one drawn after those of the shuffled axes; the settings are those of the fit.
    rng = np.random.default_rng(3)
    for n in array.shape:
        rng.permutation(n)
    permuted = rng.permuted(expansion.inverse())
    np.testing.assert_allclose(np.sort(permuted.ravel()), np.sort(array.ravel()), atol=1e-12)
    by_hand = organize(permuted, tree="binary", iterations=2).expand()
    assert comparison["permuted: trees"].sparsity.l1 == pytest.approx(by_hand.entropy())
    assert organize(permuted).expand().entropy() != pytest.approx(by_hand.entropy())
    dyadic = tuple(Tree.dyadic(n) for n in array.shape)
    assert comparison["permuted: dyadic trees"].sparsity.l1 == pytest.approx(expand(permuted, dyadic).entropy())
    assert 0 < comparison.gain(permuted=True) < 0.1 < 0.4 < comparison.gain()
    assert "fitted to permuted values" in str(comparison)
    assert "permuted: trees" not in expansion.compare(permuted=False)
    assert "permuted: trees" not in expand(array, found.trees).compare()  # given, not fitted
    seen = []
    expansion.compare(progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]


def test_comparisons_are_values(made, tmp_path):
    array, _, expansion = made
    for comparison in (expansion.compare(), organize(array).expand().compare(), expand(*flat()).compare()):
        again = Comparison.load(comparison.save(tmp_path / "c.json"))
        assert again == comparison and str(again.rows()) == str(comparison.rows()) and str(again) == str(comparison)
    assert expansion.compare(1) == expansion.compare(1) != expansion.compare(2)


def flat():
    """A matrix so small that its exponents are NaN."""
    return np.ones((2, 2)), (Tree.dyadic(2), Tree.dyadic(2))


def test_saved_and_loaded(made, tmp_path):
    _, trees, expansion = made
    expansion.save(tmp_path / "e.npz")
    again = Expansion.load(tmp_path / "e.npz")
    fitted = organize(expansion.inverse()).expand()
    assert Expansion.load(fitted.save(tmp_path / "f.npz")) == fitted != Expansion(fitted.coefficients, fitted.trees)
    assert again == expansion and again != Expansion(expansion.coefficients + 1, trees)
    assert inverse(again.coefficients, dict(enumerate(again.trees))).shape == (24, 20, 10)
    assert "α" in repr(again) and "α" in repr(again.holder) and "90%" in repr(again.sparsity)
