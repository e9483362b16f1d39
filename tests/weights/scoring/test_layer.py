"""Scores of one layer: heads and layer form under grouped queries, and the folded norm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngeo.weights.layout.layer import Norm
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.directionality import directionality
from attngeo.weights.scoring.factored import Figures
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.layer import LayerFactors, fold_norm, head_scores, layer_factors, layer_scores
from attngeo.weights.scoring.rotary import rotary_average
from tests.weights import dense_scores as dense
from tests.weights.scoring.random_layer import dense_forms, random_layer


def assert_scores(scores, form):
    """Compare scores from factors with those of the dense form."""
    assert scores.symmetry == pytest.approx(dense.symmetry(form), abs=2e-6)
    assert scores.directionality == pytest.approx(dense.directionality(form), abs=2e-6)
    assert scores.norm == pytest.approx(np.linalg.norm(form), rel=1e-6)


@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([(40, 4), (12, 9), (7, 1)]), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_heads_and_layer_form_under_grouped_queries(groups, size, shape, seed):
    layer = random_layer(groups * size, groups, *shape, seed=seed)
    factors = layer_factors(layer)
    all_scores = head_scores(factors.query, factors.key)
    assert len(all_scores) == groups * size
    for scores, form in zip(all_scores, dense_forms(layer), strict=True):
        assert_scores(scores, form)
    assert_scores(layer_scores(factors.layer_query, factors.layer_key), sum(dense_forms(layer)))


@pytest.mark.parametrize(("groups", "size", "seed"), [(3, 3, 406), (1, 4, 474), (2, 4, 500), (1, 3, 217)])
def test_a_sum_of_heads_is_not_rounded_to_float32(groups, size, seed):
    layer = random_layer(groups * size, groups, 12, 9, seed=seed)
    factors = layer_factors(layer)
    scores = layer_scores(factors.layer_query, factors.layer_key)
    assert scores.directionality == pytest.approx(dense.directionality(sum(dense_forms(layer))), abs=1e-12)


def test_the_layer_form_has_the_rank_of_its_groups():
    factors = layer_factors(random_layer(6, 2, 40, 4))
    assert factors.layer_query.w.shape == factors.layer_key.w.shape == (1, 8, 40)


def test_factors_share_memory_with_the_weights():
    layer = random_layer()
    factors = layer_factors(layer)
    assert np.shares_memory(factors.query.w, layer.query)
    assert np.shares_memory(factors.key.w, layer.key)


def test_heads_that_cancel_are_summed_in_float64():
    layer = random_layer(4, 2, 600, 180)
    layer.query[1] = -layer.query[0] + np.float32(1e-5) * layer.query[1]
    layer.query[3] = -layer.query[2] + np.float32(1e-5) * layer.query[3]
    factors = layer_factors(layer)
    assert factors.layer_query.w.dtype == np.float64
    assert_scores(layer_scores(factors.layer_query, factors.layer_key), sum(dense_forms(layer)))


@pytest.mark.parametrize("centred", [False, True])
def test_folding_the_norm_follows_the_formula(centred):
    layer = random_layer(6, 2, 40, 4)
    gain = np.random.default_rng(5).normal(1, 0.5, 40).astype(np.float32)
    factors = fold_norm(layer_factors(layer), Norm(gain, centred))
    centre = np.eye(40) - centred / 40
    outer = centre @ np.diag(gain.astype(np.float64))
    folded = [outer @ form @ outer.T for form in dense_forms(layer)]
    for scores, form in zip(head_scores(factors.query, factors.key), folded, strict=True):
        assert_scores(scores, form)
    assert_scores(layer_scores(factors.layer_query, factors.layer_key), sum(folded))


def test_centring_keeps_its_precision_where_the_mean_dominates():
    layer = random_layer(2, 2, 400, 8)
    layer.query[:], layer.key[:] = layer.query + 1000, layer.key - 1000
    factors = fold_norm(layer_factors(layer), Norm(np.ones(400, np.float32), centred=True))
    centre = np.eye(400) - 1 / 400
    for scores, form in zip(head_scores(factors.query, factors.key), dense_forms(layer), strict=True):
        assert_scores(scores, centre @ form @ centre)


@pytest.mark.parametrize("at_once", [1, 10**9])
def test_the_pairs_of_a_layer_are_averaged_in_parts_of_any_size(monkeypatch, at_once):
    """In large layers one pair is more work than it takes to start a thread."""
    monkeypatch.setattr("attngeo.weights.scoring.layer.WORTH_A_THREAD", at_once)
    layer, rotary = random_layer(6, 2, 40, 8), RotaryPairs.halves([1.0, 0.4, 0.1])
    factors = layer_factors(layer)
    scores = layer_scores(factors.layer_query, factors.layer_key, Figures(rotary=rotary), 2)
    query = np.stack([layer.query[:3].sum(0), layer.query[3:].sum(0)])  # [G, d, r]
    average = rotary_average(query.astype(np.float64), layer.key.astype(np.float64), rotary)
    assert scores.rotary.symmetry == pytest.approx(float(average.symmetry), abs=2e-6)
    assert scores.rotary.directionality == pytest.approx(float(directionality(average.rows, average.columns)), abs=2e-6)


def test_heads_with_two_widths_have_only_a_directionality():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 4, 30)).astype(np.float32), rng.normal(size=(2, 4, 20)).astype(np.float32)
    factors = LayerFactors(Factors(query), Factors(key))
    for scores, q, k in zip(head_scores(factors.query, factors.key), query, key, strict=True):
        assert np.isnan(scores.symmetry)
        assert scores.directionality == pytest.approx(dense.directionality(dense.form(q.T, k.T)), abs=1e-6)


@pytest.mark.parametrize("scales", [(1e-30, 1e-30), (1e-40, 1e-40), (1.0, 1e-40), (1e-40, 1.0)])
@pytest.mark.parametrize("centred", [False, True])
def test_weights_whose_squares_underflow_are_scored_plain_and_folded(scales, centred):
    layer = random_layer(6, 2, 40, 4)
    for side, scale in zip((layer.query, layer.key), scales, strict=True):
        side[:] = (side.astype(np.float64) * scale).astype(np.float32)
    rescaled = [form / (scales[0] * scales[1]) for form in dense_forms(layer)]
    gain = np.random.default_rng(5).normal(1, 0.5, 40).astype(np.float32)
    outer = (np.eye(40) - centred / 40) @ np.diag(gain.astype(np.float64))
    plain, folded = layer_factors(layer), fold_norm(layer_factors(layer), Norm(gain, centred))
    for factors, forms in ((plain, rescaled), (folded, [outer @ form @ outer.T for form in rescaled])):
        heads = head_scores(*factors.heads)
        whole = layer_scores(factors.layer_query, factors.layer_key)
        for scores, form in zip([whole, *heads], [sum(forms), *forms], strict=True):
            assert scores.symmetry == pytest.approx(dense.symmetry(form), abs=2e-6)
            assert scores.directionality == pytest.approx(dense.directionality(form), abs=2e-6)


def test_heads_that_cancel_are_summed_in_float64_where_their_squares_underflow():
    layer = random_layer(4, 2, 600, 180)
    layer.query[:] *= np.float32(1e-30)
    layer.query[1], layer.query[3] = -layer.query[0], -layer.query[2]
    layer.query[1, 0, 0] = layer.query[3, 1, 1] = np.float32(1e-30)
    factors = layer_factors(layer)
    assert factors.layer_query.w.dtype == np.float64


def test_layers_compare_as_values():
    def layer(**fields):
        return random_layer(norm=Norm(np.ones(40, np.float32), centred=True), **fields)

    assert layer() == layer() and layer() != layer(seed=1) and layer() != layer(heads=4) and layer() != layer(layer=1)
    assert layer() != random_layer() and random_layer() != layer() and layer() != "layer"
