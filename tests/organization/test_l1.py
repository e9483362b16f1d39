"""l1 distances and norms, compared with SciPy on every implementation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from attngeo.organization import kernels
from attngeo.organization.distance import l1_distances, l1_norm

torch = pytest.importorskip("torch")


@given(n=st.integers(1, 20), k=st.integers(1, 700), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_l1_distances_equal_those_of_scipy(n, k, seed):
    points = np.random.default_rng(seed).standard_normal((n, k))
    expected = cdist(points, points, "cityblock")
    np.testing.assert_allclose(l1_distances(points, np.arange(len(points))), expected, atol=1e-12 * k)
    np.testing.assert_allclose(l1_distances(torch.tensor(points), np.arange(n)), expected, atol=1e-12 * k)
    rows, columns = np.arange(0, n, 2), np.arange(n)[::-1].copy()
    np.testing.assert_allclose(l1_distances(points, rows, columns), expected[np.ix_(rows, columns)], atol=1e-12 * k)
    assert l1_norm(points) == pytest.approx(np.abs(points).sum(), rel=1e-12)


def test_the_l1_norm_of_single_precision_is_summed_in_double_precision():
    values = torch.rand(100_003, generator=torch.Generator().manual_seed(0))  # [k]
    assert l1_norm(values) == pytest.approx(values.double().sum().item(), rel=1e-12)


def test_l1_distances_without_numba_equal_those_of_scipy(monkeypatch):
    monkeypatch.setattr(kernels, "cpu", lambda: None)
    points = np.random.default_rng(0).standard_normal((9, 50))
    expected = cdist(points, points, "cityblock")
    np.testing.assert_allclose(l1_distances(points, np.arange(len(points))), expected)
    np.testing.assert_allclose(l1_distances(points, np.array([1, 4]), np.arange(9)), expected[[1, 4]])
    assert l1_norm(points) == pytest.approx(np.abs(points).sum(), rel=1e-12)
