"""Precision of the scores from factors: within 2e-6 of the dense float64 form, for float32 factors of every kind."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.weights.scoring import factored, factors
from attngeo.weights.scoring.factored import Figures, score_forms
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.products import quadratic_forms
from tests.weights import dense_scores as dense

TOLERANCE = 2e-6


def make_factors(kind: str, d: int, r: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 factors [d, r] of a kind whose products are hard to sum precisely."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    query, key = normal(d, r), normal(d, r)
    basis = np.linalg.qr(normal(r, r))[0]
    decay = np.logspace(0, -3, r, dtype=np.float32)
    if kind == "nearly symmetric":
        query = key + np.float32(0.01) * query
    elif kind == "nearly skew":
        query = np.concatenate([-key[:, r // 2 :], key[:, : r // 2]], axis=1) + np.float32(0.001) * query
    elif kind == "one huge row and column":
        query[7] *= 1000
        key[9] *= 1000
    elif kind == "some large rows and columns":
        query[rng.integers(0, d, 10)] *= 30
        key[rng.integers(0, d, 10)] *= 30
    elif kind == "one huge channel":
        query[:, 0] *= 1000
        key[:, 0] *= 1000
    elif kind == "common mean":
        query, key = query + np.float32(5), key + np.float32(5)
    elif kind == "rows of one length":
        query /= np.linalg.norm(query, axis=1, keepdims=True)
        key /= np.linalg.norm(key, axis=1, keepdims=True)
    elif kind == "low rank":
        query, key = (query * decay) @ basis, (key * decay) @ basis
    elif kind == "cancelling":  # the largest channels of one factor are the smallest of the other
        query, key = (query * decay) @ basis, (key * decay[::-1]) @ basis
    elif kind == "heavy tails":
        query *= np.exp(normal(d, 1))
        key *= np.exp(normal(d, 1))
    else:
        assert kind == "gaussian"
    return query.astype(np.float32), key.astype(np.float32)


KINDS = [
    "gaussian",
    "nearly symmetric",
    "nearly skew",
    "one huge row and column",
    "some large rows and columns",
    "one huge channel",
    "common mean",
    "rows of one length",
    "low rank",
    "cancelling",
    "heavy tails",
]


def assert_precise(query: np.ndarray, key: np.ndarray) -> None:
    """Compare the scores of one form with those of the dense form."""
    (scores,) = score_forms(Factors(query.T[None].copy()), Factors(key.T[None].copy()))
    form = dense.form(query, key)
    assert abs(scores.symmetry - dense.symmetry(form)) < TOLERANCE
    assert abs(scores.directionality - dense.directionality(form)) < TOLERANCE
    assert scores.norm == pytest.approx(np.linalg.norm(form), rel=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "r"), [(600, 2), (640, 64), (512, 200), (300, 300), (100, 400)])
def test_float32_products_are_kept_only_where_they_are_precise(kind, d, r, monkeypatch):
    monkeypatch.setattr(factors, "SMALL", 0)  # otherwise shapes this small are computed in float64 at once
    assert_precise(*make_factors(kind, d, r, seed=d + r))


@pytest.mark.parametrize("kind", ["gaussian", "common mean"])
@pytest.mark.parametrize("key_type", [np.float32, np.float64])
def test_small_forms_are_computed_in_float64(kind, key_type):
    query, key = make_factors(kind, 40, 6, seed=0)
    (scores,) = score_forms(Factors(query.T[None].copy()), Factors(key.T[None].astype(key_type)))
    form = dense.form(query, key)
    assert abs(scores.symmetry - dense.symmetry(form)) < 1e-12
    assert abs(scores.directionality - dense.directionality(form)) < 1e-12
    assert scores.norm == pytest.approx(np.linalg.norm(form), rel=1e-12)


@pytest.mark.parametrize("kind", ["gaussian", "nearly symmetric", "one huge row and column", "cancelling"])
def test_scores_of_a_head_of_a_large_model(kind):
    assert_precise(*make_factors(kind, 4096, 128, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "r"), [(4096, 128), (2048, 1024)])
def test_scores_of_large_forms(kind, d, r):
    assert_precise(*make_factors(kind, d, r, seed=1))


def test_a_large_gaussian_head_is_computed_once(monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("computed again in float64")

    monkeypatch.setattr(factored, "_in_double", refuse)
    assert_precise(*make_factors("gaussian", 4096, 128, seed=3))


def test_cancelling_factors_are_computed_again_in_float64(monkeypatch):
    calls = []
    in_double = factored._in_double
    monkeypatch.setattr(factored, "_in_double", lambda *given: calls.append(1) or in_double(*given))
    monkeypatch.setattr(factors, "SMALL", 0)
    assert_precise(*make_factors("cancelling", 500, 40, seed=0))
    assert calls


def test_factors_that_cancel_almost_completely_are_scored_from_qr_factors(monkeypatch):
    """The entries of the Gram matrices are 1e12 times the squared norm they sum to: too much for float64."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    decay = np.logspace(0, -7, 12)
    query, key = (rng.normal(size=(40, 12)) * decay) @ basis, (rng.normal(size=(40, 12)) * decay[::-1]) @ basis
    calls = []
    from_qr = factored._from_qr
    monkeypatch.setattr(factored, "_from_qr", lambda *given: calls.append(1) or from_qr(*given))
    assert_precise(query, key)
    assert calls
    (scores,) = score_forms(Factors(query.T[None].copy()), Factors(key.T[None].copy()), Figures(ranks=True))
    form = query @ key.T
    for rank, part in ((scores.rank_symmetric, form + form.T), (scores.rank_skew, form - form.T)):
        squares = np.abs(np.linalg.eigvals(part)) ** 2
        assert rank == pytest.approx(squares.sum() ** 2 / (squares**2).sum(), rel=1e-4)
    tau = np.trace(form) / (12**0.5 * np.linalg.norm(form))
    assert scores.self_attending == pytest.approx(tau, abs=TOLERANCE)


def test_several_queries_are_scored_with_one_key(monkeypatch):
    monkeypatch.setattr(factors, "SMALL", 0)
    rng = np.random.default_rng(0)
    queries, key = (
        rng.standard_normal((7, 90, 200), dtype=np.float32),
        rng.standard_normal((1, 90, 200), dtype=np.float32),
    )
    all_scores = list(score_forms(Factors(queries), Factors(key)))
    assert len(all_scores) == 7
    for query, scores in zip(queries, all_scores, strict=True):
        form = dense.form(query.T, key[0].T)
        assert abs(scores.symmetry - dense.symmetry(form)) < TOLERANCE
        assert abs(scores.directionality - dense.directionality(form)) < TOLERANCE


@pytest.mark.parametrize("r", [1, 15, 16, 17, 255, 256, 257, 600])
def test_quadratic_forms_of_every_block_size(r):
    rng = np.random.default_rng(r)
    w = rng.normal(size=(r, 31))
    grams = np.stack([a @ a.T for a in rng.normal(size=(2, r, 40))])
    expected = np.einsum("ad,nab,bd->nd", w, grams, w, optimize=True)
    np.testing.assert_allclose(quadratic_forms(grams, w), expected, rtol=1e-11)


def test_slices_of_factors_share_their_gram_matrices():
    whole = Factors(np.random.default_rng(0).normal(size=(4, 3, 10)))
    gram = whole.gram
    assert np.shares_memory(whole[1:3].gram, gram)
    np.testing.assert_allclose(gram[2], whole.w[2] @ whole.w[2].T)
    assert whole.energy() == pytest.approx(np.sum(whole.w**2))
    assert Factors(whole.w).energy() == pytest.approx(np.sum(whole.w**2))


@pytest.mark.parametrize(("query_scale", "key_scale"), [(1e-170, 1.0), (1.0, 1e-170), (1e160, 1.0), (1e-200, 1e200)])
def test_squares_beyond_the_range_of_float64_lose_no_digits(query_scale, key_scale):
    query, key = (w.astype(np.float64) for w in make_factors("some large rows and columns", 200, 30, seed=0))
    (scores,) = score_forms(Factors(query.T[None] * query_scale), Factors(key.T[None] * key_scale))
    form = dense.form(query, key)
    assert abs(scores.symmetry - dense.symmetry(form)) < TOLERANCE
    assert abs(scores.directionality - dense.directionality(form)) < TOLERANCE
    assert scores.norm == pytest.approx(query_scale * key_scale * np.linalg.norm(form), rel=TOLERANCE, abs=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("query_scale", "key_scale"), [(1e-20, 1e15), (1e-30, 1.0), (1e-18, 1e-18), (1e-40, 1e30)])
def test_factors_of_very_different_size_lose_no_digits(dtype, query_scale, key_scale, monkeypatch):
    """The Gram matrix of one factor alone may underflow while the norm of the form is well in range."""
    monkeypatch.setattr(factors, "SMALL", 0)
    query, key = make_factors("some large rows and columns", 200, 30, seed=0)
    query, key = (query * query_scale).astype(dtype), (key.astype(np.float64) * key_scale).astype(dtype)
    (scores,) = score_forms(Factors(query.T[None].copy()), Factors(key.T[None].copy()))
    form = dense.form(query.astype(np.float64) / query_scale, key.astype(np.float64) / key_scale)
    assert abs(scores.symmetry - dense.symmetry(form)) < TOLERANCE
    assert abs(scores.directionality - dense.directionality(form)) < TOLERANCE
    assert scores.norm == pytest.approx(query_scale * key_scale * np.linalg.norm(form), rel=TOLERANCE, abs=0)
