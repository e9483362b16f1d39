"""The re-paired null: which queries are scored with which keys."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attngeo.weights.layout.layer import Layer
from attngeo.weights.scoring.layer import layer_factors
from attngeo.weights.scoring.nulls.repaired import RepairedNull, derangement
from tests.weights import dense_scores as dense
from tests.weights.scoring.random_layer import random_layer


@given(st.integers(2, 200))
def test_a_derangement_pairs_no_group_with_itself(groups):
    partner = derangement(groups)
    assert sorted(partner) == list(range(groups))
    assert all(other != group for group, other in enumerate(partner))
    assert partner == derangement(groups)


def repaired_rows(layers: list[Layer], heads: bool = True) -> list[list[dict]]:
    """Return the rows of each layer, the layer form first, with the columns of the null filled in."""
    repaired = RepairedNull()
    rows = []
    for layer in layers:
        new = [{} for _ in range(1 + len(layer.query) * heads)]
        factors = layer_factors(layer)
        repaired.add_layer(layer.stack, factors, new[0])
        if heads:
            repaired.add_heads(layer.stack, factors, new[1:])
        rows.append(new)
    repaired.close()
    return rows


def assert_row(row, form):
    """Compare the columns of one row with the scores of a dense form."""
    assert row["symmetry_repaired"] == pytest.approx(dense.symmetry(form), abs=2e-6)
    assert row["directionality_repaired"] == pytest.approx(dense.directionality(form), abs=2e-6)


def test_heads_are_paired_with_another_group_and_layers_with_another_layer():
    layers = [random_layer(6, 3, seed=i, layer=i) for i in range(3)]
    rows = repaired_rows(layers)
    partner = derangement(3)
    for i, layer in enumerate(layers):
        other = layers[i - 1]  # the previous layer; the last one for the first
        whole = sum(dense.form(query, other.key[h // 2]) for h, query in enumerate(layer.query))
        assert_row(rows[i][0], whole)
        for h, query in enumerate(layer.query):
            assert_row(rows[i][1 + h], dense.form(query, layer.key[partner[h // 2]]))


def test_heads_of_a_single_group_are_paired_with_another_layer():
    layers = [random_layer(3, 1, seed=i) for i in range(3)]
    rows = repaired_rows(layers)
    for i, layer in enumerate(layers):
        for h, query in enumerate(layer.query):
            assert_row(rows[i][1 + h], dense.form(query, layers[i - 1].key[0]))


def test_the_only_layer_of_its_stack_or_shape_is_not_paired():
    layers = [random_layer(6, 3), random_layer(6, 3, stack="encoder"), random_layer(6, 3, d=20)]
    rows = repaired_rows(layers)
    assert [row[0] for row in rows] == [{}, {}, {}]
    assert all("symmetry_repaired" in head for row in rows for head in row[1:])  # they need no other layer


def test_layers_that_share_their_weights_are_not_paired():
    layer = random_layer(6, 3)
    assert [row[0] for row in repaired_rows([layer, layer, layer])] == [{}, {}, {}]
    first, second, third = repaired_rows([layer, layer, random_layer(6, 3, seed=1)])
    assert second[0] == {}
    assert first[0] and third[0]


def test_layers_whose_keys_agree_in_a_dimension_are_paired():
    """A dimension that no key reads is 0 in every layer."""
    layers = [random_layer(6, 3, seed=i) for i in range(2)]
    for layer in layers:
        layer.key[:, 0] = 0
    for row, layer, other in zip(repaired_rows(layers), layers, layers[::-1], strict=True):
        assert_row(row[0], sum(dense.form(query, other.key[h // 2]) for h, query in enumerate(layer.query)))


def test_only_the_first_and_the_last_layer_are_kept_in_memory():
    repaired = RepairedNull()
    kept = []
    for i in range(5):
        factors = layer_factors(random_layer(6, 3, seed=i))
        kept.append(weakref.ref(factors.layer_key))
        repaired.add_layer("decoder", factors, {})
    del factors
    gc.collect()
    assert [ref() is not None for ref in kept] == [True, False, False, False, True]
