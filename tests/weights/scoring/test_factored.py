"""Precision: within 2e-6 of the dense float64 form, for float32 factors of every kind."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.weights.scoring import factored, factors
from attngeo.weights.scoring.factored import score_forms
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.products import quadratic_forms
from tests.weights import dense_scores as dense

TOLERANCE = 2e-6


def made(kind: str, d: int, r: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Float32 factors [d, r] of the kinds that are hard to add up."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    query, key = normal(d, r), normal(d, r)
    basis = np.linalg.qr(normal(r, r))[0]
    fade = np.logspace(0, -3, r, dtype=np.float32)
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
        query, key = (query * fade) @ basis, (key * fade) @ basis
    elif kind == "cancelling":  # what one factor has most of, the other has least of
        query, key = (query * fade) @ basis, (key * fade[::-1]) @ basis
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


def check(query: np.ndarray, key: np.ndarray) -> None:
    (scores,) = score_forms(Factors(query.T[None].copy()), Factors(key.T[None].copy()))
    form = dense.form(query, key)
    assert abs(scores.symmetry - dense.symmetry(form)) < TOLERANCE
    assert abs(scores.directionality - dense.directionality(form)) < TOLERANCE
    assert scores.norm == pytest.approx(np.linalg.norm(form), rel=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "r"), [(600, 2), (640, 64), (512, 200), (300, 300), (100, 400)])
def test_float32_products_are_trusted_only_where_they_are_right(kind, d, r, monkeypatch):
    monkeypatch.setattr(factors, "SMALL", 0)  # else shapes this small go to float64 at once
    check(*made(kind, d, r, seed=d + r))


@pytest.mark.parametrize("kind", ["gaussian", "nearly symmetric", "one huge row and column", "cancelling"])
def test_a_head_of_a_large_model(kind):
    check(*made(kind, 4096, 128, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "r"), [(4096, 128), (2048, 1024)])
def test_large_models(kind, d, r):
    check(*made(kind, d, r, seed=1))


def test_the_large_gaussian_head_needs_no_second_look(monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("done again in float64")

    monkeypatch.setattr(factored, "_in_double", refuse)
    check(*made("gaussian", 4096, 128, seed=3))


def test_cancellation_is_noticed(monkeypatch):
    seen = []
    again = factored._in_double
    monkeypatch.setattr(factored, "_in_double", lambda *given: seen.append(1) or again(*given))
    monkeypatch.setattr(factors, "SMALL", 0)
    check(*made("cancelling", 500, 40, seed=0))
    assert seen


def test_factors_that_cancel_almost_wholly_are_taken_apart(monkeypatch):
    """The Grams' entries are 1e12 times the squared norm they add up to: beyond float64."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    fade = np.logspace(0, -7, 12)
    query, key = (rng.normal(size=(40, 12)) * fade) @ basis, (rng.normal(size=(40, 12)) * fade[::-1]) @ basis
    seen = []
    apart = factored._from_qr
    monkeypatch.setattr(factored, "_from_qr", lambda *given: seen.append(1) or apart(*given))
    check(query, key)
    assert seen


def test_several_queries_with_one_key(monkeypatch):
    monkeypatch.setattr(factors, "SMALL", 0)
    rng = np.random.default_rng(0)
    queries, key = (
        rng.standard_normal((7, 90, 200), dtype=np.float32),
        rng.standard_normal((1, 90, 200), dtype=np.float32),
    )
    found = list(score_forms(Factors(queries), Factors(key)))
    assert len(found) == 7
    for query, scores in zip(queries, found, strict=True):
        form = dense.form(query.T, key[0].T)
        assert abs(scores.symmetry - dense.symmetry(form)) < TOLERANCE
        assert abs(scores.directionality - dense.directionality(form)) < TOLERANCE


@pytest.mark.parametrize("r", [1, 15, 16, 17, 255, 256, 257, 600])
def test_quadratic_forms(r):
    rng = np.random.default_rng(r)
    w = rng.normal(size=(r, 31))
    grams = np.stack([a @ a.T for a in rng.normal(size=(2, r, 40))])
    expected = np.einsum("ad,nab,bd->nd", w, grams, w, optimize=True)
    np.testing.assert_allclose(quadratic_forms(grams, w), expected, rtol=1e-11)


def test_parts_share_what_is_known():
    whole = Factors(np.random.default_rng(0).normal(size=(4, 3, 10)))
    gram = whole.gram
    assert np.shares_memory(whole[1:3].gram, gram)
    np.testing.assert_allclose(gram[2], whole.w[2] @ whole.w[2].T)
    assert whole.energy() == pytest.approx(np.sum(whole.w**2))
    assert Factors(whole.w).energy() == pytest.approx(np.sum(whole.w**2))
