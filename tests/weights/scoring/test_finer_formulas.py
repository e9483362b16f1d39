"""dominance, self_attending and effective ranks: NumPy and torch, batched, compared with their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.errors import InputError
from attngeo.weights.scoring.dominance import dominance
from attngeo.weights.scoring.effective_rank import effective_ranks, effective_ranks_of_dense
from attngeo.weights.scoring.form import Form
from attngeo.weights.scoring.self_attending import self_attending, self_attending_std
from attngeo.weights.scoring.symmetry import squared_norm
from tests.weights.scoring.test_formulas import BATCH, both_libraries, dense_forms, factors


def products(query, key):
    q, k = query.swapaxes(-1, -2), key.swapaxes(-1, -2)
    return k @ query, q @ query, k @ key


def ranks_from_eigenvalues(form: np.ndarray) -> list[float]:
    moduli = [np.abs(np.linalg.eigvals((form + sign * form.T) / 2)) for sign in (1, -1)]
    return [float((m**2).sum() ** 2 / (m**4).sum()) for m in moduli]


@both_libraries
def test_dominance_compares_the_coefficients_of_variation(convert):
    query, key = factors(d_query=40, d_key=30)
    rows, columns = (np.linalg.norm(query @ key.swapaxes(-1, -2), axis=axis) for axis in (-1, -2))
    expected = np.log((rows.std(-1, ddof=1) / rows.mean(-1)) / (columns.std(-1, ddof=1) / columns.mean(-1)))
    found = dominance(convert(rows), convert(columns))
    assert type(found) is type(convert(rows)) and tuple(found.shape) == BATCH
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(dominance(convert(columns), convert(rows))), -expected, rtol=1e-12)
    assert (expected < 0).any()


@both_libraries
def test_norms_that_do_not_vary_have_no_dominance(convert):
    uneven = np.array([[1.0, 2, 3], [1, 2, 3]])
    for even in (np.full((2, 3), 1 / 3), np.ones((2, 1)), np.zeros((2, 3))):
        assert np.isnan(np.asarray(dominance(convert(uneven), convert(even)))).all()
        assert np.isnan(np.asarray(dominance(convert(even), convert(uneven)))).all()


@both_libraries
def test_self_attending_is_the_trace_relative_to_the_norm(convert):
    query, key = factors()
    query[0, 0] = key[0, 0]
    cross, gram_query, gram_key = products(convert(query), convert(key))
    traces = cross.diagonal(0, -2, -1).sum(-1)
    found = self_attending(traces, squared_norm(gram_query, gram_key), rank=6)
    for index, form in dense_forms(query, key).items():
        assert float(found[index]) == pytest.approx(np.trace(form) / np.sqrt(6) / np.linalg.norm(form), abs=1e-13)
    assert float(found[0, 0]) > 0.5
    zero = convert(np.zeros(2))
    assert np.isnan(np.asarray(self_attending(zero, zero, 3))).all()


def test_only_projections_of_full_rank_attend_to_themselves_alone():
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 4)))[0]
    assert Form(basis, 3 * basis).self_attending() == pytest.approx(1)
    assert Form(basis, -basis).self_attending() == pytest.approx(-1)
    assert Form(basis * [2, 1, 1, 1], basis).self_attending() < 0.97
    assert Form(np.eye(3, 5), np.eye(3, 5)).self_attending() == pytest.approx(1)  # rank is at most d


@pytest.mark.parametrize(("d", "r"), [(30, 4), (30, 60)])
def test_the_null_of_self_attending(d, r):
    query, key = np.random.default_rng(0).normal(size=(2, 2000, d, r))
    traces = np.einsum("ndr,ndr->n", query, key)
    scores = self_attending(traces, squared_norm(*products(query, key)[1:]), min(d, r))
    assert abs(scores.mean()) < 4 * scores.std() / np.sqrt(2000)
    assert scores.std() == pytest.approx(self_attending_std(min(d, r), d), rel=0.08)


@both_libraries
def test_effective_ranks_are_those_of_the_eigenvalues(convert):
    query, key = factors()
    of_factors = effective_ranks(*products(convert(query), convert(key)))
    of_dense = effective_ranks_of_dense(convert(query @ key.swapaxes(-1, -2)))
    for index, form in dense_forms(query, key).items():
        for ranks in (of_factors, of_dense):
            found = [float(ranks.symmetric[index]), float(ranks.skew[index])]
            assert found == pytest.approx(ranks_from_eigenvalues(form), rel=1e-9)
    assert float(of_factors.error.max()) < 1e-10


@both_libraries
def test_a_part_that_is_zero_up_to_rounding_has_no_rank(convert):
    query, _ = factors()
    ranks = effective_ranks(*products(convert(query), convert(query)))
    assert np.isnan(np.asarray(ranks.skew)).all() and np.isfinite(np.asarray(ranks.symmetric)).all()
    assert np.isinf(np.asarray(ranks.error)).all() or float(ranks.error.min()) > 1e-2
    zero = convert(np.zeros((2, 3, 3)))
    for nothing in (effective_ranks(zero, zero, zero), effective_ranks_of_dense(zero)):
        assert np.isnan(np.asarray(nothing.symmetric)).all() and np.isnan(np.asarray(nothing.skew)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_error_of_the_ranks_is_estimated(dtype):
    """The smaller a part, the more digits cancel: the estimate is never far below the true error."""
    rng = np.random.default_rng(0)
    for size in (1.0, 0.3, 0.1, 0.03, 0.01):
        query, noise = rng.normal(size=(2, 80, 10))
        query, key = query.astype(dtype), (query + size * noise).astype(dtype)
        form = query.astype(np.float64) @ key.astype(np.float64).T
        skew = (form - form.T) / 2
        expected = (skew**2).sum() ** 2 / ((skew @ skew.T) ** 2).sum()
        ranks = effective_ranks(*products(query, key))
        assert np.isnan(ranks.skew) or abs(float(ranks.skew) / expected - 1) < 3 * float(ranks.error)


@both_libraries
def test_float32_stays_float32(convert):
    query, key = (convert(w.astype(np.float32)) for w in factors())
    cross, gram_query, gram_key = products(query, key)
    norms = cross.sum(-1) ** 2
    ranks = effective_ranks(cross, gram_query, gram_key)
    shares = self_attending(cross[..., 0, 0], squared_norm(gram_query, gram_key), 6)
    for value in (ranks.symmetric, ranks.skew, dominance(norms, 1 / norms), shares):
        assert value.dtype == query.dtype


def test_a_form_offers_them():
    query, key = (w[0, 0] for w in factors())
    for form in (Form(query, key), Form(query[:5], key[:5])):  # from the factors, and from the dense form
        dense = form.dense()
        rows, columns = np.linalg.norm(dense, axis=1), np.linalg.norm(dense, axis=0)
        assert form.dominance() == pytest.approx(float(dominance(rows, columns)), rel=1e-9)
        assert form.effective_ranks() == pytest.approx(tuple(ranks_from_eigenvalues(dense)), rel=1e-9)
    with pytest.raises(InputError, match=r"Form\.self_attending"):
        Form(query, key[:20]).self_attending()
    with pytest.raises(InputError, match=r"Form\.effective_ranks"):
        Form(query, key[:20]).effective_ranks()
    assert np.isnan(Form(np.zeros((4, 2)), np.ones((4, 2))).self_attending())
    assert Form(query * 1e150, key * 1e100).dominance() == pytest.approx(Form(query, key).dominance())
