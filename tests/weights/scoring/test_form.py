"""Form: reference values, definitions, invariances, extreme scales and invalid input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.form import Form
from tests.weights import dense_scores as dense

GOLDENS = np.load(Path(__file__).parents[2] / "goldens" / "scores.npz")


def gaussian_factors(seed: int, d: int, r: int) -> tuple[np.ndarray, np.ndarray]:
    query, key = np.random.default_rng(seed).normal(size=(2, d, r))
    return query, key


shapes = st.tuples(st.integers(0, 2**32 - 1), st.integers(8, 48), st.integers(1, 60))  # r on both sides of d


@pytest.mark.parametrize("i", range(5))
def test_scores_of_dense_matrices_equal_the_reference(i):
    matrix = GOLDENS["M"][i]
    form = Form(matrix, np.eye(32))
    assert form.symmetry() == pytest.approx(GOLDENS["symmetry_table"][i], rel=1e-8, abs=1e-12)
    assert form.directionality() == pytest.approx(GOLDENS["directionality_table"][i], rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("head", range(4))
def test_scores_of_heads_equal_the_reference(head):
    _, size, _ = GOLDENS["heads_dh_d"]
    query, key = (GOLDENS[name][head * size : (head + 1) * size].T for name in ("query_weight", "key_weight"))
    form = Form(query, key)
    np.testing.assert_allclose(form.dense(), GOLDENS["head_M"][head], rtol=1e-8, atol=1e-15)
    assert form.symmetry() == pytest.approx(2 * GOLDENS["head_symmetry_raw"][head] - 1, rel=1e-8)
    assert form.symmetry() == pytest.approx(1 - 2 * GOLDENS["head_skew_raw"][head], rel=1e-8)
    assert form.directionality() == pytest.approx(-GOLDENS["head_directionality_raw"][head], rel=1e-8)


def test_scores_of_the_layer_equal_the_reference():
    form = Form(GOLDENS["query_weight"].T, GOLDENS["key_weight"].T)
    np.testing.assert_allclose(form.dense(), GOLDENS["layer_M"], rtol=1e-8, atol=1e-15)
    assert form.symmetry() == pytest.approx(2 * float(GOLDENS["layer_symmetry_raw"]) - 1, rel=1e-8)
    assert form.directionality() == pytest.approx(-float(GOLDENS["layer_directionality_raw"]), rel=1e-8)


@given(shapes)
@settings(max_examples=40, deadline=None)
def test_scores_do_not_depend_on_the_basis_of_the_head(shape):
    seed, d, r = shape
    query, key = gaussian_factors(seed, d, r)
    change = np.random.default_rng(seed + 1).normal(size=(r, r)) + 3 * np.sqrt(r) * np.eye(r)
    before, after = Form(query, key), Form(query @ change, key @ np.linalg.inv(change).T)
    assert after.symmetry() == pytest.approx(before.symmetry(), abs=1e-9)
    assert after.directionality() == pytest.approx(before.directionality(), abs=1e-6)


@given(shapes)
@settings(max_examples=40, deadline=None)
def test_symmetry_does_not_depend_on_the_basis_of_the_residual_stream(shape):
    seed, d, r = shape
    query, key = gaussian_factors(seed, d, r)
    rotation = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(d, d)))[0]
    before, after = Form(query, key), Form(rotation @ query, rotation @ key)
    assert after.symmetry() == pytest.approx(before.symmetry(), abs=1e-10)


def test_directionality_depends_on_the_basis_of_the_residual_stream():
    query, key = gaussian_factors(0, 64, 8)
    key[:3] *= 10
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(64, 64)))[0]
    assert Form(query, key).directionality() < -0.5
    assert abs(Form(rotation @ query, rotation @ key).directionality()) < 0.5


@given(shapes, st.floats(1e-3, 1e3))
@settings(max_examples=40, deadline=None)
def test_scores_under_a_sign_a_transpose_and_a_scale(shape, scale):
    query, key = gaussian_factors(*shape)
    form, negative, transposed, scaled = Form(query, key), Form(-query, key), Form(key, query), Form(scale * query, key)
    assert negative.symmetry() == pytest.approx(form.symmetry(), abs=1e-12)  # both parts of M change sign
    assert negative.directionality() == pytest.approx(form.directionality(), abs=1e-9)
    assert transposed.symmetry() == pytest.approx(form.symmetry(), abs=1e-10)
    assert transposed.directionality() == pytest.approx(-form.directionality(), abs=1e-9)
    assert scaled.symmetry() == pytest.approx(form.symmetry(), abs=1e-10)
    assert scaled.directionality() == pytest.approx(form.directionality(), abs=1e-7)


def test_symmetric_forms_score_1_and_skew_forms_minus_1():
    _, key = gaussian_factors(0, 40, 6)
    rotation = np.kron(np.eye(3), [[0.0, 1.0], [-1.0, 0.0]])
    assert Form(key, key).symmetry() == pytest.approx(1, abs=1e-12)
    assert Form(-key, key).symmetry() == pytest.approx(1, abs=1e-12)
    assert Form(key @ rotation, key).symmetry() == pytest.approx(-1, abs=1e-12)
    assert Form(key, key).directionality() == pytest.approx(0, abs=1e-9)


def test_gamma_sets_the_threshold():
    form = Form(*gaussian_factors(0, 300, 4))
    assert form.directionality(gamma=1.0) == pytest.approx(dense.directionality(form.dense(), 1.0), abs=1e-9)
    assert form.directionality(gamma=1.0) != form.directionality()
    assert form.directionality(gamma=100.0) == 0.0  # no norm exceeds its threshold


@pytest.mark.parametrize(("d", "r"), [(20, 6), (6, 20), (9, 9)])
def test_eigenvalues_are_those_of_the_dense_form(d, r):
    form = Form(*gaussian_factors(0, d, r))
    values = form.eigenvalues()
    expected = np.linalg.eigvals(form.dense())
    expected = expected[np.argsort(-np.abs(expected))][: min(d, r)]
    assert values.shape == (min(d, r),)
    assert np.all(np.diff(np.abs(values)) <= 1e-9 * np.abs(values[0]))
    for value in values:  # a conjugate pair may come in either order
        assert np.abs(expected - value).min() < 1e-9 * np.abs(values[0])
    assert np.sum(values).real == pytest.approx(np.trace(form.dense()))


def test_a_form_with_two_widths_has_no_symmetry_and_no_eigenvalues():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(30, 5)), rng.normal(size=(20, 5))
    form = Form(query, key)
    with pytest.raises(ValueError, match="the query has width 30 and the key has width 20"):
        form.symmetry()
    with pytest.raises(ValueError, match="both sides must have the same width"):
        form.eigenvalues()


@pytest.mark.parametrize("side", ["query", "key"])
def test_a_zero_factor_has_no_score(side):
    factors = dict(zip(("query", "key"), gaussian_factors(0, 20, 4), strict=True))
    factors[side] = np.zeros((20, 4))
    form = Form(**factors, rotary=RotaryPairs.halves([1.0, 0.3]))
    for score in (form.symmetry, form.directionality, form.rope_symmetry, form.rope_directionality):
        assert np.isnan(score())
    assert np.isnan(form.symmetry(offset=1))
    assert form.norm() == 0
    assert not form.row_norms().any()


def test_factors_whose_product_is_zero_have_no_score():
    query, key = gaussian_factors(0, 20, 4)
    query[:, :2], key[:, 2:] = 0, 0
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(4, 4)))[0]
    assert np.isnan(Form(query, key).symmetry())
    assert np.isnan(Form(query @ rotation, key @ rotation).symmetry())  # zero up to rounding


@pytest.mark.parametrize("scale", [1e-80, 1e-300, 1e140])
@pytest.mark.parametrize("shape", [(20, 4), (6, 20)])
def test_float64_weights_whose_powers_underflow_or_overflow_are_scored(scale, shape):
    query, key = gaussian_factors(0, *shape)
    key[-1] *= 9
    rotary = RotaryPairs.halves([1.0, 0.3])
    form, scaled = Form(query, key, rotary), Form(query * scale, key * scale, rotary)
    assert scaled.norm() == pytest.approx(scale * scale * form.norm(), rel=1e-9)  # 0 where that underflows
    for score in ("symmetry", "directionality", "rope_symmetry", "rope_directionality", "self_attending"):
        assert getattr(scaled, score)() == pytest.approx(getattr(form, score)(), abs=1e-9), score
    assert scaled.symmetry(offset=3) == pytest.approx(form.symmetry(offset=3), abs=1e-9)
    assert scaled.effective_ranks() == pytest.approx(form.effective_ranks(), abs=1e-9, nan_ok=True)


def test_a_form_is_an_immutable_value():
    query, key = gaussian_factors(0, 5, 2)
    assert Form(query, key) == Form(query.copy(), key.copy())
    assert Form(query, key) != Form(key, query)
    assert repr(Form(query, key)) == "Form(query=[5, 2], key=[5, 2])"
    with pytest.raises(AttributeError):
        Form(query, key).query = key


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_weights_of_a_torch_model_are_accepted(dtype):
    torch = pytest.importorskip("torch")
    query, key = (torch.tensor(w, dtype=getattr(torch, dtype)) for w in gaussian_factors(0, 30, 4))
    form = Form(torch.nn.Parameter(query), torch.nn.Parameter(key))
    assert form == Form(query.double(), key.double())
    assert form.query.dtype == (np.float64 if dtype == "float64" else np.float32)


@pytest.mark.parametrize(
    ("query", "key", "message"),
    [
        (np.ones((4, 2)), np.ones((4, 3)), r"query has shape \[4, 2\] and key has shape \[4, 3\]"),
        (np.ones(4), np.ones((4, 1)), r"query has shape \[4\], expected a non-empty matrix \[d, r\]"),
        (np.full((4, 1), np.nan), np.ones((4, 1)), "query contains NaN or Inf"),
    ],
)
def test_invalid_factors_are_refused(query, key, message):
    with pytest.raises(ValueError, match=message):
        Form(query, key)


def test_only_projections_of_full_rank_attend_to_themselves_alone():
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 4)))[0]
    assert Form(basis, 3 * basis).self_attending() == pytest.approx(1)
    assert Form(basis, -basis).self_attending() == pytest.approx(-1)
    assert Form(basis * [2, 1, 1, 1], basis).self_attending() < 0.97
    assert Form(np.eye(3, 5), np.eye(3, 5)).self_attending() == pytest.approx(1)  # rank is at most d
