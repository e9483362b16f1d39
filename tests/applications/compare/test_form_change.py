"""The change and the cosine of two forms, compared with dense forms."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.applications.compare.change import head_changes, head_cosines, layer_change, squared_difference
from attngeo.weights.scoring.layer import LayerFactors

HEADS, GROUPS, WIDTH, SIZE = 6, 3, 40, 8


def factors(rng: np.random.Generator, size: int = SIZE, dtype=np.float32) -> LayerFactors:
    query, key = (rng.standard_normal((n, size, WIDTH)).astype(dtype) for n in (HEADS, GROUPS))
    return LayerFactors(query.mT, key.mT)


def dense(layer: LayerFactors, head: int) -> np.ndarray:
    query, key = layer.query[head], layer.key[head // layer.group_size]
    return query.astype(np.float64) @ key.T.astype(np.float64)


def norms(a: LayerFactors, b: LayerFactors, pairs) -> list[tuple[float, float]]:
    return [(float(np.linalg.norm(dense(a, i))), float(np.linalg.norm(dense(b, j)))) for i, j in pairs]


@pytest.mark.parametrize("size_of_b", [SIZE, SIZE - 3])
def test_heads_agree_with_dense_forms(size_of_b):
    rng = np.random.default_rng(0)
    a, b = factors(rng), factors(rng, size_of_b)
    pairs = [(0, 0), (1, 5), (4, 2)]
    both = norms(a, b, pairs)
    for (i, j), (norm_a, norm_b), found in zip(pairs, both, head_changes(a, b, pairs, both), strict=True):
        m_a, m_b = dense(a, i), dense(b, j)
        assert found.change == pytest.approx(np.linalg.norm(m_a - m_b) / norm_a, rel=1e-5)
        assert found.cosine == pytest.approx((m_a * m_b).sum() / (norm_a * norm_b), abs=1e-6)
    expected = [change.cosine for change in head_changes(a, b, pairs, both)]
    assert head_cosines(a, b, pairs, both) == pytest.approx(expected, abs=1e-6)


def test_the_layer_form_agrees_with_the_sum_of_the_heads():
    rng = np.random.default_rng(1)
    a, b = factors(rng), factors(rng)
    m_a, m_b = (sum(dense(layer, head) for head in range(HEADS)) for layer in (a, b))
    found = layer_change(a, b, (np.linalg.norm(m_a), np.linalg.norm(m_b)))
    assert found.change == pytest.approx(np.linalg.norm(m_a - m_b) / np.linalg.norm(m_a), rel=1e-5)


@pytest.mark.parametrize("step", [1e-2, 1e-4, 1e-6])
def test_small_changes_keep_their_digits(step):
    # ‖M_A‖² + ‖M_B‖² − 2⟨M_A, M_B⟩ in float32 would be all rounding error here
    rng = np.random.default_rng(2)
    query_a, key_a, d_query, d_key = rng.standard_normal((4, 64, 600)).astype(np.float32)
    query_b, key_b = query_a + np.float32(step) * d_query, key_a + np.float32(step) * d_key
    exact = np.linalg.norm(
        query_a.T.astype(float) @ key_a.astype(float) - query_b.T.astype(float) @ key_b.astype(float)
    )
    assert np.sqrt(squared_difference(query_a, query_b, key_a, key_b)) == pytest.approx(exact, rel=1e-4)


def test_a_change_of_the_head_basis_is_no_change():
    rng = np.random.default_rng(3)
    query, key = rng.standard_normal((2, 64, 600)).astype(np.float32)
    mixing = np.linalg.qr(rng.standard_normal((64, 64)))[0].astype(np.float32)
    norm = np.linalg.norm(query.T @ key)
    assert np.sqrt(squared_difference(query, mixing @ query, key, mixing @ key)) < 1e-5 * norm
    moved_query, moved_key = (
        mixing @ (side + np.float32(0.01) * rng.standard_normal(side.shape)) for side in (query, key)
    )
    moved = moved_query.astype(np.float32), moved_key.astype(np.float32)
    exact = np.linalg.norm(query.T.astype(float) @ key - moved[0].T.astype(float) @ moved[1])
    assert np.sqrt(squared_difference(query, moved[0], key, moved[1])) == pytest.approx(exact, rel=1e-5)


def test_extreme_weights_neither_overflow_nor_vanish():
    rng = np.random.default_rng(4)
    query_a, key_a, query_b, key_b = rng.standard_normal((4, 8, 40)).astype(np.float32)
    plain = squared_difference(query_a, query_b, key_a, key_b)
    for scale in (1e-20, 1e18):
        tiny = [np.float32(scale) * side for side in (query_a, query_b, key_a, key_b)]
        assert squared_difference(*tiny) / scale**2 / scale**2 == pytest.approx(plain, rel=1e-4)


def test_equal_forms_have_changed_by_exactly_zero():
    a = factors(np.random.default_rng(5))
    found = head_changes(a, a, [(2, 2)], norms(a, a, [(2, 2)]))[0]
    assert found.change == 0.0
    assert found.cosine == pytest.approx(1, abs=1e-12)


def test_a_zero_form_has_no_change():
    rng = np.random.default_rng(6)
    a = LayerFactors(np.zeros((HEADS, WIDTH, SIZE), np.float32), factors(rng).key)
    assert np.isnan(head_changes(a, factors(rng), [(0, 0)], [(0.0, 1.0)])[0].change)


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-3, 1e-9, 1e9])
def test_the_cosine_of_forms_of_different_size_keeps_its_digits(scale):
    """‖M_A − M_B‖² alone says nothing about a form that is lost in its rounding."""
    rng = np.random.default_rng(4)
    a, b = factors(rng), factors(rng)
    b = LayerFactors(a.query + b.query, a.key + b.key)
    m_a, m_b = (sum(dense(layer, head) for head in range(HEADS)) for layer in (a, b))
    expected = (m_a * m_b).sum() / (np.linalg.norm(m_a) * np.linalg.norm(m_b))
    scaled = LayerFactors(b.query * np.float32(scale), b.key)
    assert layer_change(a, scaled, (np.linalg.norm(m_a), scale * np.linalg.norm(m_b))).cosine == pytest.approx(
        expected, abs=2e-6
    )
    pairs = [(0, 0), (4, 4)]
    plain, of_scaled = (head_changes(a, other, pairs, norms(a, other, pairs)) for other in (b, scaled))
    assert [found.cosine for found in of_scaled] == pytest.approx([found.cosine for found in plain], abs=2e-6)


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**20])
def test_changes_do_not_depend_on_the_scale_of_the_forms(scale):
    rng = np.random.default_rng(3)
    a, b = factors(rng), factors(rng)
    pairs = [(0, 0), (1, 5)]
    scaled = [LayerFactors(side.query * np.float32(scale), side.key) for side in (a, b)]
    expected = head_changes(a, b, pairs, norms(a, b, pairs))
    for found, one in zip(head_changes(*scaled, pairs, norms(*scaled, pairs)), expected, strict=True):
        assert (found.change, found.cosine) == pytest.approx((one.change, one.cosine), rel=1e-6)


@pytest.mark.parametrize("scale", [2.0**-70, 2.0**40])
def test_changes_of_layers_of_different_size_do_not_depend_on_their_scale(scale):
    """Products of two queries and of two keys are within the range of float32 here, but those of both are not."""
    rng = np.random.default_rng(3)
    a, b = factors(rng), factors(rng, SIZE // 2)
    m_a, m_b = (sum(dense(layer, head) for head in range(HEADS)) for layer in (a, b))
    norm_a, norm_b = np.linalg.norm(m_a), np.linalg.norm(m_b)
    factor = np.float32(scale)
    scaled = [LayerFactors(side.query * factor, side.key * factor) for side in (a, b)]
    found = layer_change(*scaled, (scale**2 * norm_a, scale**2 * norm_b))
    assert found.change == pytest.approx(np.linalg.norm(m_a - m_b) / norm_a, rel=1e-6)
    assert found.cosine == pytest.approx((m_a * m_b).sum() / (norm_a * norm_b), abs=1e-6)
