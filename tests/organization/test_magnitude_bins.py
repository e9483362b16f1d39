"""Sums over the smallest numbers of an array agree with those of the sorted array."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from attngeo.organization.sparsity import MagnitudeBins

sparsity_module = importlib.import_module("attngeo.organization.sparsity")


@pytest.fixture
def numbers() -> np.ndarray:
    """Numbers of many magnitudes, a seventh of them 0, and some equal ones."""
    rng = np.random.default_rng(0)
    numbers = (rng.standard_normal(40_000) ** 5).astype(np.float32)
    numbers[::7] = 0
    numbers[1:200] = 1.5
    return numbers


def test_energies_of_the_smallest_numbers(numbers):
    energies = np.append(0, np.cumsum(np.sort(np.square(numbers, dtype=np.float64))))
    counts = np.array([0, 1, 6_000, 20_001, 39_999, 40_000])
    np.testing.assert_allclose(MagnitudeBins(numbers).energies_of_smallest(counts), energies[counts], rtol=1e-12)


def test_numbers_within_an_energy(numbers):
    energies = np.cumsum(np.sort(np.square(numbers, dtype=np.float64)))
    limits = np.array([0.0, 1e-6, 0.3, 0.9, 0.999, 2.0]) * energies[-1]
    bins = MagnitudeBins(numbers)
    assert bins.most_within(limits).tolist() == np.searchsorted(energies, limits, "right").tolist()
    assert bins.energy == pytest.approx(energies[-1], rel=1e-12)


def test_the_sparsity_of_a_large_array_is_that_of_the_sorted_one(numbers, monkeypatch):
    sorted_all = sparsity_module.sparsity(numbers)
    monkeypatch.setattr(sparsity_module, "LARGE", 1)
    binned = sparsity_module.sparsity(numbers)
    assert binned.shares == sorted_all.shares and binned.l1 == sorted_all.l1
    assert binned.l2 == pytest.approx(sorted_all.l2, rel=1e-6)
    np.testing.assert_allclose(binned.errors, sorted_all.errors, atol=1e-7)


def test_an_array_of_zeros():
    assert MagnitudeBins(np.zeros(5, np.float32)).energies_of_smallest(np.array([0, 3, 5])).tolist() == [0, 0, 0]
