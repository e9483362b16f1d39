"""Sparsity, compared with a direct computation."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.organization.coefficients import sparsity


def test_sparsity_equals_a_direct_computation():
    rng = np.random.default_rng(0)
    coefficients = rng.standard_normal((9, 11)) ** 5
    result = sparsity(coefficients)
    energies = np.sort((coefficients**2).ravel())[::-1]
    total = energies.sum()
    for energy, share in result.shares.items():
        count = round(share * 99)
        assert energies[:count].sum() >= energy * total * (1 - 1e-9)
        assert energies[: count - 1].sum() < energy * total
    for count, error in zip(result.counts, result.errors, strict=True):
        assert error == pytest.approx(np.sqrt(energies[count:].sum() / total), abs=1e-12)
    assert (result.counts[0], result.counts[-1], result.errors[-1]) == (1, 99, 0.0)
    assert result.l1 == pytest.approx(np.abs(coefficients).sum()) and result.l2 == pytest.approx(total**0.5)


def test_sparsity_of_one_of_equal_and_of_zero_coefficients():
    one = sparsity(np.eye(1, 50))
    assert one.normalised == 1 and set(one.shares.values()) == {1 / 50} and one.errors[0] == 0
    flat = sparsity(np.ones(1000))
    assert flat.shares[0.9] == pytest.approx(0.9, abs=1e-3) and flat.normalised == pytest.approx(1000**0.5)
    assert sparsity(np.zeros((4, 4))).normalised == 0


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_float32_coefficients_whose_squares_underflow_or_overflow_have_the_same_sparsity(scale):
    coefficients = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    result, scaled = sparsity(coefficients), sparsity(coefficients * np.float32(scale))
    assert scaled.shares == result.shares and scaled.normalised == pytest.approx(result.normalised, rel=1e-6)
    assert scaled.errors == pytest.approx(result.errors, abs=1e-6)
