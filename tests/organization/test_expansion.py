"""Expansions: coefficients, entropy, the controls of `compare`, saved files."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from scipy.fft import dctn

from attngeo.errors import InputError
from attngeo.organization import Expansion, SparsityControls, Tree, expand, organize, planted
from attngeo.organization.haar import forward, inverse

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def planted_expansion():
    """Return a planted array, its trees and its expansion along them."""
    array, trees = planted((24, 20, 10), seed=1)
    return array, trees, expand(array, trees)


def test_trees_are_given_by_axis_or_in_order(planted_expansion):
    array, trees, expansion = planted_expansion
    assert expand(array, dict(enumerate(trees))) == expansion
    np.testing.assert_allclose(expansion.inverse(), array, atol=1e-12)
    np.testing.assert_allclose(expand(torch.tensor(array), trees).coefficients, expansion.coefficients, atol=1e-12)
    assert expand(torch.tensor(array), trees).entropy() == pytest.approx(expansion.entropy())
    with pytest.raises(InputError, match="a tree for each of the 3 axes"):
        expand(array, trees[:2])
    with pytest.raises(InputError, match="has 24 elements, the array has 20"):
        expand(array, (trees[0], trees[0], trees[2]))


def test_entropy_is_the_l1_norm_of_the_coefficients(planted_expansion):
    array, trees, expansion = planted_expansion
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
    for arguments, message in (({"of": "layer"}, "of 'layer'"), ({"coarsest": 0}, "coarsest to be at least 1, got 0")):
        with pytest.raises(InputError, match=message):
            expansion.entropy(**arguments)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_head_of_zeros_has_a_normalised_entropy_of_0(planted_expansion, dtype):
    array, trees, _ = planted_expansion
    given = array.astype(dtype)
    given[:, :, 3] = 0
    given[:, :, 4] *= 1e-3  # a faint head is not a head of zeros
    bi = np.abs(forward(given.astype(np.float64), {0: trees[0], 1: trees[1]}))  # [queries, keys, heads]
    norms = np.sqrt(np.square(bi).sum((0, 1)))
    expected = np.divide(bi.sum((0, 1)), norms, out=np.zeros(10), where=norms > 0)
    assert expected[3] == 0
    np.testing.assert_allclose(expand(given, trees).entropy("head", normalised=True), expected, rtol=1e-3)


def test_controls_follow_their_description_and_are_less_sparse(planted_expansion):
    array, _, expansion = planted_expansion
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
        assert profile.sparsity.l2 == pytest.approx(own.sparsity.l2)  # all bases are orthonormal
        assert profile.sparsity.normalised > 1.5 * own.sparsity.normalised
        assert profile.sparsity.shares[0.999] > own.sparsity.shares[0.999]
        if profile.holder is not None:
            assert profile.holder.exponent < own.holder.exponent
    assert expansion.compare(seed=3)["shuffled axes"].sparsity == comparison["shuffled axes"].sparsity
    assert expansion.compare(seed=4)["shuffled axes"].sparsity != comparison["shuffled axes"].sparsity
    assert len(str(comparison).splitlines()) == 7 and len(comparison.rows()) == 5
    assert f"{100 * comparison.gain():.1f}% below that of dyadic trees" in str(comparison)
    assert "cosines per head" not in [p.name for p in expand(array[:, :, 0], expansion.trees[:2]).compare().profiles]


def test_the_permuted_control_fits_trees_with_the_same_settings():
    """It fits trees to the same values in random places, by the same procedure, and compares with dyadic trees."""
    array, _ = planted((24, 20, 10), seed=1)
    found = organize(array, tree="binary", iterations=2)
    expansion = found.expand()
    comparison = expansion.compare(seed=3)
    assert [profile.name for profile in comparison.profiles[-2:]] == ["permuted: trees", "permuted: dyadic trees"]
    # The values are permuted after the axes are shuffled, by the same generator.
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
    assert "permuted: trees" not in expand(array, found.trees).compare()  # these trees were given, not fitted
    calls = []
    expansion.compare(progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1]


def test_the_permuted_control_of_a_large_array_is_a_block_of_its_values_and_says_so(tmp_path, monkeypatch):
    array, _ = planted((24, 20, 10), seed=1)
    whole = organize(array).expand().compare()
    monkeypatch.setattr(import_module("attngeo.organization.expansion"), "LARGEST_PERMUTED", 2000)
    expansion = organize(array).expand()
    controls = expansion.compare(seed=3)
    assert whole.block == () and controls.block == (14, 14, 10)
    assert str(controls).endswith("which have no structure (to a block of 14 × 14 × 10 of them)")
    assert len(controls.profiles) == len(whole.profiles) and controls.gain() == pytest.approx(whole.gain())
    assert abs(controls.gain(permuted=True)) < 0.15 < controls.gain()
    assert expansion.compare(seed=3) == controls == SparsityControls.load(controls.save(tmp_path / "c.json"))
    assert expansion.compare(seed=4)["permuted: trees"] != controls["permuted: trees"]


def test_comparisons_compare_save_and_load(planted_expansion, tmp_path):
    array, _, expansion = planted_expansion
    for comparison in (expansion.compare(), organize(array).expand().compare(), expand(*tiny_matrix()).compare()):
        again = SparsityControls.load(comparison.save(tmp_path / "c.json"))
        assert again == comparison and str(again.rows()) == str(comparison.rows()) and str(again) == str(comparison)
    assert expansion.compare(1) == expansion.compare(1) != expansion.compare(2)


def tiny_matrix():
    """Return a matrix so small that its exponents are NaN, and its trees."""
    return np.ones((2, 2)), (Tree.dyadic(2), Tree.dyadic(2))


def test_expansions_save_and_load(planted_expansion, tmp_path):
    _, trees, expansion = planted_expansion
    expansion.save(tmp_path / "e.npz")
    again = Expansion.load(tmp_path / "e.npz")
    fitted = organize(expansion.inverse()).expand()
    assert Expansion.load(fitted.save(tmp_path / "f.npz")) == fitted != Expansion(fitted.coefficients, fitted.trees)
    assert again == expansion and again != Expansion(expansion.coefficients + 1, trees)
    assert inverse(again.coefficients, dict(enumerate(again.trees))).shape == (24, 20, 10)
    assert "α" in repr(again) and "α" in repr(again.holder) and "90%" in repr(again.sparsity)
