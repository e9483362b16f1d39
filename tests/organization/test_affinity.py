"""Affinities, compared with their formulas, and on slices that are zero, equal or nearly equal."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from attngeo.errors import InputError
from attngeo.organization import affinity_from_distance, cosine_affinity, gaussian_affinity

torch = pytest.importorskip("torch")


def test_affinity_from_distance_is_its_formula():
    distance = np.array([[0.0, 2.0, 4.0], [2.0, 0.0, 6.0], [4.0, 6.0, 0.0]])
    np.testing.assert_allclose(affinity_from_distance(distance), np.exp(-distance / 2.0))
    np.testing.assert_allclose(affinity_from_distance(distance, 0.5), np.exp(-distance / 1.0))
    mostly_zero = np.zeros((5, 5))
    mostly_zero[0, 1:] = mostly_zero[1:, 0] = 3.0
    np.testing.assert_allclose(affinity_from_distance(mostly_zero), np.exp(-mostly_zero / 3.0))
    np.testing.assert_array_equal(affinity_from_distance(np.zeros((4, 4))), np.ones((4, 4)))


def test_affinity_from_distance_rejects_bad_input():
    for bad, message in ((-np.ones((2, 2)), "no negative entries, the smallest is -1"), (np.ones((2, 3)), "square")):
        with pytest.raises(InputError, match=message):
            affinity_from_distance(bad)
    with pytest.raises(InputError, match="epsilon"):
        affinity_from_distance(np.ones((2, 2)), 0.0)


def test_gaussian_affinity_is_its_formula():
    rng = np.random.default_rng(3)
    for n in (2, 4, 30):
        array = rng.standard_normal((6, n, 5)) + 100.0
        slices = np.moveaxis(array, 1, 0).reshape(n, -1)
        distance = cdist(slices, slices)
        nearest = np.sort(distance + np.diag(np.full(n, np.inf)), 1)[:, : min(5, n - 1)]
        sigma = np.median(nearest, 1)
        expected = np.exp(-(distance**2) / np.outer(sigma, sigma))
        np.testing.assert_allclose(gaussian_affinity(array, 1), expected, rtol=1e-9)
        np.testing.assert_allclose(gaussian_affinity(torch.tensor(array), 1), expected, rtol=1e-9)


def test_gaussian_affinity_of_equal_and_nearly_equal_slices():
    rng = np.random.default_rng(3)
    array = np.repeat(rng.standard_normal((3, 4)), (6, 6, 1), axis=0)  # six equal slices: their own width is zero
    kernel = gaussian_affinity(array, 0)
    assert np.isfinite(kernel).all() and (kernel[:6, :6] == 1).all() and kernel.min() < 1
    np.testing.assert_array_equal(gaussian_affinity(np.ones((4, 3)), 0), np.ones((4, 4)))
    nearly_equal = np.ones((6, 3)) + 1e-9 * rng.standard_normal((6, 3))
    assert gaussian_affinity(nearly_equal, 0).min() < 0.9


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_gaussian_affinity_of_nearly_equal_float32_slices_does_not_depend_on_the_scale(scale):
    rng = np.random.default_rng(3)
    array = np.repeat(rng.standard_normal((3, 6)), 4, axis=0) + 1e-5 * rng.standard_normal((12, 6))
    array = array.astype(np.float32)
    expected = gaussian_affinity(array, 0)
    assert expected[0, 1] < 0.99  # of two slices that are nearly equal
    for scaled in (array * np.float32(scale), torch.tensor(array) * scale):
        np.testing.assert_allclose(gaussian_affinity(scaled, 0), expected, rtol=1e-6)


def test_cosine_affinity_of_zero_negative_and_equal_slices():
    array = np.array([[1.0, 2.0], [0.0, 0.0], [-1.0, -2.0], [0.0, 0.0], [1.0, 2.0], [2.0, 4.0]])
    affinity = cosine_affinity(array, 0)
    np.testing.assert_allclose(affinity[0], [1, 0, 0, 0, 1, 1], atol=1e-15)
    np.testing.assert_array_equal(affinity[1], [0, 1, 0, 1, 0, 0])
    np.testing.assert_array_equal(affinity[0], affinity[4])
    all_negative = cosine_affinity(-np.abs(array) - 1, 0)
    assert all_negative.min() > 0
