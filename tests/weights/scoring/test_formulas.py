"""The formulas, for NumPy and torch, with batch axes, compared with their definitions on dense forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attngeo.weights.scoring.engine import score_forms
from attngeo.weights.scoring.formulas import (
    bounded_ratio,
    directionality,
    dominance,
    excess,
    row_norms,
    self_attending_std,
)


def as_numpy(array: np.ndarray) -> Any:
    return array


def as_torch(array: np.ndarray) -> Any:
    return pytest.importorskip("torch").tensor(array)


both_libraries = pytest.mark.parametrize("convert", [as_numpy, as_torch])


@both_libraries
def test_a_zero_form_has_no_symmetry_and_rounding_does_not_exceed_one(convert):
    scores = bounded_ratio(convert(np.array([0.0, 1 + 1e-12, -1 - 1e-12, 0.5])), convert(np.array([0.0, 1, 1, 1])))
    assert np.isnan(float(scores[0]))
    assert [float(score) for score in scores[1:]] == [1, -1, 0.5]


@both_libraries
def test_norms_that_cancel_are_not_below_zero(convert):
    """Rows of W_q that are orthogonal to those of W_k up to rounding."""
    rng = np.random.default_rng(0)
    direction, others = rng.normal(size=3), rng.normal(size=(200, 3))
    gram = 9 * np.outer(direction, direction)
    query = others - np.outer(others @ direction, direction) / (direction @ direction)
    assert ((query @ gram) * query).sum(-1).min() < 0
    norms = np.asarray(row_norms(convert(query), convert(gram)))
    assert norms.min() == 0 and norms.max() < 1e-6


@both_libraries
def test_norms_that_are_equal_have_no_excess_and_no_direction(convert):
    for norms in (np.full((2, 7), 1 / 3), np.zeros((2, 7))):
        equal = convert(norms)
        assert np.asarray(excess(equal)).tolist() == [0, 0]
        assert np.asarray(directionality(equal, equal)).tolist() == [0, 0]


@both_libraries
def test_norms_that_do_not_vary_have_no_dominance(convert):
    uneven = np.array([[1.0, 2, 3], [1, 2, 3]])
    for even in (np.full((2, 3), 1 / 3), np.zeros((2, 3))):
        assert np.isnan(np.asarray(dominance(convert(uneven), convert(even)))).all()
        assert np.isnan(np.asarray(dominance(convert(even), convert(uneven)))).all()


@pytest.mark.parametrize(("d", "r"), [(30, 4), (30, 60)])
def test_the_null_of_self_attending(d, r):
    scores = score_forms(*np.random.default_rng(0).normal(size=(2, 2000, d, r))).self_attending
    assert abs(scores.mean()) < 4 * scores.std() / np.sqrt(2000)
    assert scores.std() == pytest.approx(self_attending_std(min(d, r), d), rel=0.08)


@both_libraries
def test_a_part_that_is_zero_up_to_rounding_has_no_rank(convert):
    for r in (6, 60):  # from the products of the factors, and from the dense form
        query, zero = (convert(w) for w in (np.random.default_rng(0).normal(size=(3, 40, r)), np.zeros((3, 40, r))))
        scores = score_forms(query, query, ranks=True)
        assert np.isnan(np.asarray(scores.rank_skew)).all() and np.isfinite(np.asarray(scores.rank_symmetric)).all()
        scores = score_forms(query, zero, ranks=True)
        assert np.isnan(np.asarray(scores.rank_skew)).all() and np.isnan(np.asarray(scores.rank_symmetric)).all()
