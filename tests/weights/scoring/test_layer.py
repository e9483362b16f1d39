"""Scores of one layer: grouped queries, folded norms, re-pairing; reading ahead."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngeo.io.prefetch import prefetch
from attngeo.weights.layout.attention_weights import AttentionWeights, Norm
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.layer import LayerFactors, fold_norm, head_scores, layer_factors, layer_scores
from attngeo.weights.scoring.null_repaired import RepairedNull, derangement
from tests.weights import dense_scores as dense


def weights(heads: int = 6, groups: int = 2, d: int = 40, r: int = 4, seed: int = 0, **more) -> AttentionWeights:
    rng = np.random.default_rng(seed)
    query = rng.standard_normal((heads, r, d), dtype=np.float32).transpose(0, 2, 1)  # stored [out, in]
    key = rng.standard_normal((groups, r, d), dtype=np.float32).transpose(0, 2, 1)
    return AttentionWeights(**{"stack": "decoder", "layer": 0, "query": query, "key": key} | more)


def forms(layer: AttentionWeights) -> list[np.ndarray]:
    """M_h of every head, each query head with the key head h // (H/G)."""
    return [dense.form(query, layer.key[h // layer.group_size]) for h, query in enumerate(layer.query)]


def assert_scores(scores, form):
    assert scores.symmetry == pytest.approx(dense.symmetry(form), abs=2e-6)
    assert scores.directionality == pytest.approx(dense.directionality(form), abs=2e-6)
    assert scores.norm == pytest.approx(np.linalg.norm(form), rel=1e-6)


@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([(40, 4), (12, 9), (7, 1)]), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_heads_and_layer_under_grouped_queries(groups, size, shape, seed):
    layer = weights(groups * size, groups, *shape, seed=seed)
    factors = layer_factors(layer)
    found = head_scores(factors.query, factors.key)
    assert len(found) == groups * size
    for scores, form in zip(found, forms(layer), strict=True):
        assert_scores(scores, form)
    assert_scores(layer_scores(factors.layer_query, factors.layer_key), sum(forms(layer)))


@pytest.mark.parametrize(("groups", "size", "seed"), [(3, 3, 406), (1, 4, 474), (2, 4, 500), (1, 3, 217)])
def test_a_sum_of_heads_is_not_rounded_where_little_stands_out(groups, size, seed):
    layer = weights(groups * size, groups, 12, 9, seed=seed)
    factors = layer_factors(layer)
    found = layer_scores(factors.layer_query, factors.layer_key)
    assert found.directionality == pytest.approx(dense.directionality(sum(forms(layer))), abs=1e-12)


def test_the_layer_form_has_the_rank_of_its_groups():
    factors = layer_factors(weights(6, 2, 40, 4))
    assert factors.layer_query.w.shape == factors.layer_key.w.shape == (1, 8, 40)


def test_factors_are_not_copied():
    layer = weights()
    factors = layer_factors(layer)
    assert np.shares_memory(factors.query.w, layer.query)
    assert np.shares_memory(factors.key.w, layer.key)


def test_heads_that_cancel_are_summed_with_more_digits():
    layer = weights(4, 2, 600, 180)
    layer.query[1] = -layer.query[0] + np.float32(1e-5) * layer.query[1]
    layer.query[3] = -layer.query[2] + np.float32(1e-5) * layer.query[3]
    factors = layer_factors(layer)
    assert factors.layer_query.w.dtype == np.float64
    assert_scores(layer_scores(factors.layer_query, factors.layer_key), sum(forms(layer)))


@pytest.mark.parametrize("centred", [False, True])
def test_the_norm_is_folded_in_as_the_formula_says(centred):
    layer = weights(6, 2, 40, 4)
    gain = np.random.default_rng(5).normal(1, 0.5, 40).astype(np.float32)
    factors = fold_norm(layer_factors(layer), Norm(gain, centred))
    centre = np.eye(40) - centred / 40
    outer = centre @ np.diag(gain.astype(np.float64))
    folded = [outer @ form @ outer.T for form in forms(layer)]
    for scores, form in zip(head_scores(factors.query, factors.key), folded, strict=True):
        assert_scores(scores, form)
    assert_scores(layer_scores(factors.layer_query, factors.layer_key), sum(folded))


def test_centring_where_the_mean_is_nearly_all():
    layer = weights(2, 2, 400, 8)
    layer.query[:], layer.key[:] = layer.query + 1000, layer.key - 1000
    factors = fold_norm(layer_factors(layer), Norm(np.ones(400, np.float32), centred=True))
    centre = np.eye(400) - 1 / 400
    for scores, form in zip(head_scores(factors.query, factors.key), forms(layer), strict=True):
        assert_scores(scores, centre @ form @ centre)


@given(st.integers(2, 200))
def test_no_group_is_paired_with_itself(groups):
    partner = derangement(groups)
    assert sorted(partner) == list(range(groups))
    assert all(other != group for group, other in enumerate(partner))
    assert partner == derangement(groups)


def repair(layers: list[AttentionWeights], heads: bool = True) -> list[list[dict]]:
    repaired = RepairedNull()
    rows = []
    for layer in layers:
        new = [{} for _ in range(1 + len(layer.query) * heads)]
        repaired.add(layer.stack, layer_factors(layer), new[0], new[1:])
        rows.append(new)
    repaired.close()
    return rows


def assert_row(row, form):
    assert row["symmetry_repaired"] == pytest.approx(dense.symmetry(form), abs=2e-6)
    assert row["directionality_repaired"] == pytest.approx(dense.directionality(form), abs=2e-6)


def test_heads_meet_another_group_and_layers_another_layer():
    layers = [weights(6, 3, seed=i, layer=i) for i in range(3)]
    rows = repair(layers)
    partner = derangement(3)
    for i, layer in enumerate(layers):
        stranger = layers[i - 1]  # the one before; the last for the first
        whole = sum(dense.form(query, stranger.key[h // 2]) for h, query in enumerate(layer.query))
        assert_row(rows[i][0], whole)
        for h, query in enumerate(layer.query):
            assert_row(rows[i][1 + h], dense.form(query, layer.key[partner[h // 2]]))


def test_heads_of_one_group_meet_another_layer():
    layers = [weights(3, 1, seed=i) for i in range(3)]
    rows = repair(layers)
    for i, layer in enumerate(layers):
        for h, query in enumerate(layer.query):
            assert_row(rows[i][1 + h], dense.form(query, layers[i - 1].key[0]))


def test_a_layer_alone_of_its_stack_or_shape_meets_none():
    others = [weights(6, 3), weights(6, 3, stack="encoder"), weights(6, 3, d=20)]
    rows = repair(others)
    assert [row[0] for row in rows] == [{}, {}, {}]
    assert all("symmetry_repaired" in head for row in rows for head in row[1:])  # they need no other layer


def test_layers_that_share_their_weights_are_no_strangers():
    layer = weights(6, 3)
    assert [row[0] for row in repair([layer, layer, layer])] == [{}, {}, {}]
    first, second, third = repair([layer, layer, weights(6, 3, seed=1)])
    assert second[0] == {}
    assert first[0] and third[0]


def test_only_two_layers_are_kept():
    repaired = RepairedNull()
    kept = []
    for i in range(5):
        factors = layer_factors(weights(6, 3, seed=i))
        kept.append(weakref.ref(factors.layer_key))
        repaired.add("decoder", factors, {}, [])
    del factors
    gc.collect()
    assert [ref() is not None for ref in kept] == [True, False, False, False, True]


def test_two_widths_have_a_direction_only():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 4, 30)).astype(np.float32), rng.normal(size=(2, 4, 20)).astype(np.float32)
    factors = LayerFactors(Factors(query), Factors(key))
    for scores, q, k in zip(head_scores(factors.query, factors.key), query, key, strict=True):
        assert np.isnan(scores.symmetry)
        assert scores.directionality == pytest.approx(dense.directionality(dense.form(q.T, k.T)), abs=1e-6)


def test_reading_ahead_keeps_order_and_overlaps():
    fetched = []

    def source():
        for i in range(5):
            fetched.append(i)
            yield i

    stream = prefetch(source())
    assert next(stream) == 0
    deadline = time.monotonic() + 5
    while len(fetched) < 3 and time.monotonic() < deadline:  # one handed out, one waiting, one in the reader's hands
        time.sleep(0.01)
    time.sleep(0.05)
    assert fetched == [0, 1, 2]  # and no further: memory is bounded
    assert list(stream) == [1, 2, 3, 4]


def test_reading_ahead_hands_on_the_error_after_what_came_before():
    def source():
        yield 1
        raise OSError("cut short")

    stream = prefetch(source())
    assert next(stream) == 1
    with pytest.raises(OSError, match="cut short"):
        next(stream)


def test_the_reader_stops_with_its_consumer():
    before = threading.active_count()
    stream = prefetch(iter(range(10**9)))
    next(stream)
    stream.close()
    assert threading.active_count() == before
