"""The formulas, for NumPy and torch, with batch axes, compared with their definitions on dense forms."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from attngeo.weights.scoring.directionality import (
    coefficient_of_variation,
    directionality,
    dominance,
    excess,
    threshold,
)
from attngeo.weights.scoring.effective_rank import effective_ranks, effective_ranks_of_dense
from attngeo.weights.scoring.norms import column_norms, dense_norms, double_sum, row_norms
from attngeo.weights.scoring.symmetry import (
    self_attending,
    self_attending_std,
    squared_norm,
    symmetry,
    symmetry_ratio,
    trace_of_square,
)
from tests.weights import dense_scores as dense

BATCH = (3, 2)


def as_numpy(array: np.ndarray) -> Any:
    return array


def as_torch(array: np.ndarray) -> Any:
    return pytest.importorskip("torch").tensor(array)


both_libraries = pytest.mark.parametrize("convert", [as_numpy, as_torch])


def factors(d_query: int = 40, d_key: int = 40, r: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Batches of factors [3, 2, d, r] with a few large rows."""
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(*BATCH, d_query, r)), rng.normal(size=(*BATCH, d_key, r))
    query[..., 5, :] *= 4
    key[..., 3, :] *= rng.uniform(1, 9, size=(*BATCH, 1))
    return query, key


def dense_forms(query: np.ndarray, key: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    return {index: dense.form(query[index], key[index]) for index in np.ndindex(BATCH)}


@both_libraries
def test_symmetry_of_a_batch(convert):
    query, key = factors()
    q, k = convert(query), convert(key)
    scores = symmetry(k.swapaxes(-1, -2) @ q, q.swapaxes(-1, -2) @ q, k.swapaxes(-1, -2) @ k)
    assert type(scores) is type(q) and tuple(scores.shape) == BATCH
    for index, form in dense_forms(query, key).items():
        assert float(scores[index]) == pytest.approx(dense.symmetry(form), abs=1e-13)


@both_libraries
def test_the_trace_and_the_norm_of_the_dense_form_are_those_of_the_products(convert):
    query, key = factors()
    q, k = convert(query), convert(key)
    traces = trace_of_square(k.swapaxes(-1, -2) @ q)
    squares = squared_norm(q.swapaxes(-1, -2) @ q, k.swapaxes(-1, -2) @ k)
    for index, form in dense_forms(query, key).items():
        assert float(traces[index]) == pytest.approx(np.trace(form @ form))
        assert float(trace_of_square(convert(form))) == pytest.approx(np.trace(form @ form))
        assert float(squares[index]) == pytest.approx(np.sum(form**2))


@both_libraries
def test_a_zero_form_has_no_symmetry_and_rounding_does_not_exceed_one(convert):
    scores = symmetry_ratio(convert(np.array([0.0, 1 + 1e-12, -1 - 1e-12, 0.5])), convert(np.array([0.0, 1, 1, 1])))
    assert np.isnan(float(scores[0]))
    assert [float(score) for score in scores[1:]] == [1, -1, 0.5]


@both_libraries
@pytest.mark.parametrize("gamma", [2.0, 0.5])
def test_directionality_of_a_batch_from_its_norms(convert, gamma):
    query, key = factors(d_query=40, d_key=30)
    q, k = convert(query), convert(key)
    rows = row_norms(q, k.swapaxes(-1, -2) @ k)
    columns = column_norms(k, q.swapaxes(-1, -2) @ q)
    scores = directionality(rows, columns, gamma)
    assert type(scores) is type(q) and tuple(scores.shape) == BATCH
    for index, form in dense_forms(query, key).items():
        np.testing.assert_allclose(np.asarray(rows[index]), np.linalg.norm(form, axis=1))
        np.testing.assert_allclose(np.asarray(columns[index]), np.linalg.norm(form, axis=0))
        assert float(scores[index]) == pytest.approx(dense.directionality(form, gamma), abs=1e-12)


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
def test_norms_of_dense_forms(convert):
    query, key = factors(d_key=30)
    forms = query @ key.swapaxes(-1, -2)
    rows, columns = dense_norms(convert(forms))
    np.testing.assert_allclose(np.asarray(rows), np.linalg.norm(forms, axis=-1))
    np.testing.assert_allclose(np.asarray(columns), np.linalg.norm(forms, axis=-2))


@both_libraries
def test_the_threshold_uses_the_unbiased_standard_deviation(convert):
    norms = np.random.default_rng(0).uniform(1, 2, size=(4, 20))
    limits = threshold(convert(norms), 1.5)
    assert tuple(limits.shape) == (4, 1)
    np.testing.assert_allclose(np.asarray(limits)[:, 0], norms.mean(1) + 1.5 * norms.std(1, ddof=1))


@both_libraries
def test_norms_that_are_equal_or_single_have_no_excess_and_no_direction(convert):
    for norms in (np.full((2, 7), 1 / 3), np.ones((2, 1)), np.zeros((2, 7))):
        equal = convert(norms)
        assert np.asarray(excess(equal)).tolist() == [0, 0]
        assert np.asarray(directionality(equal, equal)).tolist() == [0, 0]


@both_libraries
def test_coefficient_of_variation(convert):
    norms = np.random.default_rng(0).uniform(1, 2, size=(3, 9))
    np.testing.assert_allclose(
        np.asarray(coefficient_of_variation(convert(norms))), norms.std(1, ddof=1) / norms.mean(1)
    )
    assert np.isnan(np.asarray(coefficient_of_variation(convert(np.zeros((2, 5)))))).all()
    assert np.isnan(np.asarray(coefficient_of_variation(convert(np.ones((2, 1)))))).all()


@both_libraries
def test_float32_products_are_added_up_in_float64(convert):
    values = convert(np.array([[1e8, 1, -1e8, 3], [2, 3, 5, 7]], np.float32))
    assert double_sum(values, -1).tolist() == [4, 17]
    query, key = (convert(w.astype(np.float32)) for w in factors())
    exact = row_norms(*(convert(np.asarray(w, np.float64)) for w in (query, key.mT @ key)))
    np.testing.assert_allclose(np.asarray(row_norms(query, key.mT @ key)), np.asarray(exact), rtol=1e-6)


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


def test_the_formulas_import_without_polars_torch_and_matplotlib():
    code = (
        "import sys\n"
        "for name in ('polars', 'torch', 'matplotlib', 'typer', 'rich', 'numba', 'transformers'):\n"
        "    sys.modules[name] = None\n"
        "from attngeo.weights.scoring import directionality, norms, symmetry\n"
        "import attngeo.training.monitoring"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
