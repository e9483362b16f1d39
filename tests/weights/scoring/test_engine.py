"""`score_forms` agrees with the dense form for NumPy and torch; every form is scored as precisely as the dense form."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo import Form, RotaryPairs
from attngeo.weights.scoring.engine import score_forms
from tests.weights import dense_scores as dense
from tests.weights.scoring.test_formulas import both_libraries

TOLERANCE = 2e-6


def definitions(form: np.ndarray, r: int) -> dict[str, float]:
    """Return the scores of a dense float64 form of two factors with r columns."""
    rows, columns = np.linalg.norm(form, axis=1), np.linalg.norm(form, axis=0)
    spreads = [float(norms.std(ddof=1) / norms.mean()) for norms in (rows, columns)]
    found = {
        "directionality": dense.directionality(form),
        "dominance": float(np.log(spreads[0] / spreads[1])),
        "row_spread": spreads[0],
        "column_spread": spreads[1],
        "norm": float(np.linalg.norm(form)),
    }
    if form.shape[0] != form.shape[1]:
        return found | dict.fromkeys(("symmetry", "self_attending", "rank_symmetric", "rank_skew"), np.nan)
    moduli = [np.abs(np.linalg.eigvals((form + sign * form.T) / 2)) for sign in (1, -1)]
    ranks = [float((m**2).sum() ** 2 / (m**4).sum()) for m in moduli]
    return found | {
        "symmetry": dense.symmetry(form),
        "self_attending": float(np.trace(form) / np.sqrt(min(r, len(form))) / np.linalg.norm(form)),
        "rank_symmetric": ranks[0],
        "rank_skew": ranks[1],
    }


@both_libraries
@pytest.mark.parametrize(("d_query", "d_key", "r"), [(40, 40, 6), (20, 20, 20), (12, 12, 30), (40, 30, 6), (6, 5, 9)])
def test_every_score_of_a_batch_is_that_of_the_dense_form(convert, d_query, d_key, r):
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(3, 2, d_query, r)), rng.normal(size=(3, 1, d_key, r))  # two queries share a key
    query[..., 5, :] *= 4
    key[..., 3, :] *= rng.uniform(1, 9, size=(3, 1, 1))
    scores = score_forms(convert(query), convert(key), ranks=True)
    for i, j in np.ndindex(3, 2):
        form = dense.form(query[i, j], key[i, 0])
        for name, value in definitions(form, r).items():
            assert float(getattr(scores, name)[i, j]) == pytest.approx(value, rel=1e-9, abs=1e-11, nan_ok=True), name
        np.testing.assert_allclose(np.asarray(scores.row_norms[i, j]), np.linalg.norm(form, axis=1), rtol=1e-9)
        np.testing.assert_allclose(np.asarray(scores.column_norms[i, j]), np.linalg.norm(form, axis=0), rtol=1e-9)


def factors(kind: str, d: int, r: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 factors [d, r] of a kind whose products are hard to sum precisely."""
    rng = np.random.default_rng(d + r)

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
    elif kind == "tiny":
        query, key = query * np.float32(1e-18), key * np.float32(1e-15)
    return query.astype(np.float32), key.astype(np.float32)


KINDS = [
    *("gaussian", "nearly symmetric", "nearly skew", "one huge row and column", "some large rows and columns"),
    *("one huge channel", "common mean", "rows of one length", "low rank", "cancelling", "heavy tails", "tiny"),
]


def assert_precise(query: np.ndarray, key: np.ndarray) -> None:
    """Compare scores that need no eigenvalues with those of the dense form."""
    form, matrix = Form(query, key), dense.form(query, key)
    assert abs(form.symmetry() - dense.symmetry(matrix)) < TOLERANCE
    assert abs(form.directionality() - dense.directionality(matrix)) < TOLERANCE
    assert form.norm() == pytest.approx(np.linalg.norm(matrix), rel=TOLERANCE, abs=0)
    tau = np.trace(matrix) / np.sqrt(min(query.shape)) / np.linalg.norm(matrix)
    assert form.self_attending() == pytest.approx(tau, abs=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "r"), [(40, 6), (1100, 128), (500, 200), (300, 300), (100, 450)])
def test_factors_of_any_kind_are_scored_as_precisely_as_the_dense_form(kind, d, r):
    """The first shape is computed in float64, the others in float32 where that is enough."""
    assert_precise(*factors(kind, d, r))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "r"), [(4096, 128), (2048, 1024)])
def test_large_factors_of_any_kind_are_scored_as_precisely_as_the_dense_form(kind, d, r):
    assert_precise(*factors(kind, d, r))


def test_factors_that_cancel_almost_completely_lose_no_more_digits_than_the_dense_form():
    """The entries of the Gram matrices are 1e12 times the squared norm they sum to: too much for float64."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    decay = np.logspace(0, -7, 12)
    query, key = (rng.normal(size=(40, 12)) * decay) @ basis, (rng.normal(size=(40, 12)) * decay[::-1]) @ basis
    assert_precise(query, key)
    expected = definitions(query @ key.T, 12)
    assert Form(query, key).effective_ranks() == pytest.approx(
        (expected["rank_symmetric"], expected["rank_skew"]), rel=1e-4
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("query_scale", "key_scale"), [(1e-20, 1e15), (1e-30, 1.0), (1e-18, 1e-18), (1e-40, 1e30)])
def test_factors_of_very_different_size_lose_no_digits(dtype, query_scale, key_scale):
    """The Gram matrix of one factor alone may underflow while the norm of the form is well in range."""
    query, key = factors("some large rows and columns", 500, 190)
    query, key = (query * query_scale).astype(dtype), (key.astype(np.float64) * key_scale).astype(dtype)
    form, matrix = (
        Form(query, key),
        dense.form(query.astype(np.float64) / query_scale, key.astype(np.float64) / key_scale),
    )
    assert abs(form.symmetry() - dense.symmetry(matrix)) < TOLERANCE
    assert abs(form.directionality() - dense.directionality(matrix)) < TOLERANCE
    assert form.norm() == pytest.approx(query_scale * key_scale * np.linalg.norm(matrix), rel=TOLERANCE, abs=0)


@pytest.mark.parametrize("kind", ["gaussian", "nearly symmetric", "some large rows and columns", "cancelling", "tiny"])
@pytest.mark.parametrize("turning", [64, 16])
def test_rotary_scores_and_ranks_of_large_heads_are_as_precise_as_in_float64(kind, turning):
    query, key = factors(kind, 1200, 128)
    rotary = RotaryPairs.neighbours(np.arange(1, turning + 1) / 50, first=128 - 2 * turning)
    form, exact = Form(query, key, rotary), Form(query.astype(float), key.astype(float), rotary)
    assert form.rope_symmetry() == pytest.approx(exact.rope_symmetry(), abs=TOLERANCE)
    assert form.rope_directionality() == pytest.approx(exact.rope_directionality(), abs=TOLERANCE)
    assert form.effective_ranks() == pytest.approx(exact.effective_ranks(), rel=2e-3, nan_ok=True)
