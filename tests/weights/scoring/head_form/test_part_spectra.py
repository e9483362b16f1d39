"""Spectra from factors are those of the dense parts."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.weights.scoring.head_form import part_spectra


@pytest.mark.parametrize(("d", "r"), [(40, 4), (40, 20), (40, 30), (9, 9), (1, 1), (64, 1)])
def test_spectra_are_those_of_the_dense_parts(d, r):
    query, key = np.random.default_rng(d + r).normal(size=(2, d, r))
    form = query @ key.T
    count = min(2 * r, d)
    for found, part in zip(part_spectra(query, key), ((form + form.T) / 2, (form - form.T) / 2j), strict=True):
        dense = np.linalg.eigvalsh(part)  # ascending, with d − count zeros
        largest = dense[np.argsort(-abs(dense))][:count]
        assert found.shape == (count,)
        np.testing.assert_allclose(found, np.sort(largest)[::-1], atol=1e-10 * abs(form).max() * d)


def test_float32_factors_are_computed_in_double():
    query, key = np.random.default_rng(0).normal(size=(2, 300, 16)).astype(np.float32)
    symmetric, skew = part_spectra(query, key)
    double = part_spectra(query.astype(np.float64), key.astype(np.float64))
    assert (symmetric == double[0]).all() and (skew == double[1]).all()


def test_a_symmetric_form_has_no_skew_part():
    w = np.random.default_rng(0).normal(size=(50, 5))
    symmetric, skew = part_spectra(w, w)
    assert abs(skew).max() < 1e-12 * symmetric.max()
    np.testing.assert_allclose(symmetric[:5], np.linalg.eigvalsh(w.T @ w)[::-1])
    assert abs(symmetric[5:]).max() < 1e-12 * symmetric.max()


def test_both_spectra_together_hold_the_energy():
    query, key = np.random.default_rng(1).normal(size=(2, 60, 7))
    form = query @ key.T
    symmetric, skew = part_spectra(query, key)
    score = np.trace(form @ form) / np.square(form).sum()
    assert np.square(symmetric).sum() == pytest.approx((1 + score) / 2 * np.square(form).sum())
    assert np.square(skew).sum() == pytest.approx((1 - score) / 2 * np.square(form).sum())
