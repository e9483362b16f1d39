"""The estimated rounding errors of scores: near the true ones, and the same for one form as for many at once."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.weights.scoring.factored import PLAIN, _from_dense, _from_grams
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.rounding_error import (
    batched_error,
    batched_sensitivity,
    concentration,
    directionality_with_sensitivity,
    gram_error,
    gram_terms,
)
from tests.weights import dense_scores as dense
from tests.weights.scoring.test_factored import KINDS, make_factors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "r"), [(300, 2), (160, 40), (40, 60)])
def test_the_estimate_is_near_the_true_error(kind, d, r):
    """Root mean squares over 10 forms; the documented factor of 3 is for a single form."""
    errors, estimates = [], []
    for seed in range(10):
        query, key = make_factors(kind, d, r, seed)
        compute = _from_grams if r < d else _from_dense
        (scores,) = compute(Factors(query.T[None].copy()), Factors(key.T[None].copy()), PLAIN)
        form = dense.form(query, key)
        errors.append(
            max(abs(scores.symmetry - dense.symmetry(form)), abs(scores.directionality - dense.directionality(form)))
        )
        estimates.append(scores.error)
    ratio = np.sqrt(np.mean(np.square(errors)) / np.mean(np.square(estimates)))
    assert ratio < 4
    if np.isfinite(estimates).all():  # infinite where no norm exceeds its threshold
        assert ratio > 0.04


@pytest.mark.parametrize("square", [True, False])
def test_many_forms_at_once_have_the_same_estimates(square):
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(8, 4, 40)), rng.normal(size=(8, 4, 40 if square else 30))  # [n, r, d]
    key[:, :, 7] *= 5  # every form has an excess
    query[1] *= 10
    query[2, :, 3] *= 100
    key[3, :, :5] *= 30
    query[4] = key[4] if square else query[4]
    query[5:7, 1], key[5:7, 1] = query[5:7, 0], -(1 - 1e-3) * key[5:7, 0]  # two dimensions cancel
    query[6:, :, 3] *= 1000  # a directionality that is certain leaves the error of the symmetry
    key[7] = query[7, :, : key.shape[2]]
    grams = query @ query.mT, key @ key.mT, query @ key.mT if square else None  # [n, r, r]
    forms = query.mT @ key  # [n, d_q, d_k]
    rows, columns = np.linalg.norm(forms, axis=2), np.linalg.norm(forms, axis=1)
    squares = np.sum(forms**2, axis=(1, 2))
    symmetry = np.asarray([dense.symmetry(form) if square else np.nan for form in forms])
    sensitivity, spread = batched_sensitivity(rows, columns)
    batched = batched_error(squares, symmetry, sensitivity, spread, gram_terms(*grams))
    assert np.isfinite(batched).all()
    for i in range(8):
        cross = grams[2][i] if square else None
        _, own = directionality_with_sensitivity(rows[i], columns[i], 2.0)
        assert sensitivity[i] == pytest.approx(own)
        assert spread[i] == pytest.approx(max(concentration(rows[i]), concentration(columns[i])))
        one = gram_error(rows[i], columns[i], grams[0][i], grams[1][i], cross, symmetry[i], squares[i], own)
        assert batched[i] == pytest.approx(one, rel=1e-9, abs=0)


def test_concentration_is_one_over_the_number_of_equal_norms():
    assert concentration(np.full(8, 1e-200)) == pytest.approx(1 / 8)
    assert concentration(np.array([0.0, 3.0, 0.0])) == 1
    assert concentration(np.array([1.0, 2.0])) == pytest.approx(17 / 25)
