"""The matched cosine and its null of permuted bases."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from attngeo.applications.compare.relation import (
    ReducedShape,
    cosine_matrix,
    has_fixed_positions,
    matched_cosine,
    p_value,
    permuted_statistics,
    reduced_forms,
    statistic,
    unit_columns,
    unit_forms,
    wrongly_paired,
)
from attngeo.weights.scoring.layer import LayerFactors

WIDTH = 16


def random_forms(rng: np.random.Generator, heads: int = 4, rank: int = 4) -> np.ndarray:
    query, key = rng.standard_normal((2, heads, WIDTH, rank))
    return unit_columns(query @ key.swapaxes(1, 2))


def test_draws_that_equal_the_statistic_count():
    assert p_value(0.5, np.array([0.4, 0.5, 0.6])) == 3 / 4


def test_the_assignment_is_the_best_of_all():
    cosines = np.random.default_rng(0).uniform(-1, 1, (4, 4))
    best = max(np.mean([abs(cosines[i, j]) for i, j in enumerate(order)]) for order in permutations(range(4)))
    assert matched_cosine(cosines) == pytest.approx(best)


def test_cosines_are_those_of_the_forms():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 3, WIDTH, WIDTH))
    expected = np.einsum("aij,bij->ab", a, b)
    expected /= np.linalg.norm(a, axis=(1, 2))[:, None] * np.linalg.norm(b, axis=(1, 2))
    assert cosine_matrix(unit_columns(a), unit_columns(b)) == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1e-30, 1e-11, 1e11, 1e30])
def test_unit_forms_do_not_depend_on_the_scale_of_the_weights(scale):
    query, key = np.random.default_rng(3).standard_normal((2, 3, 4, WIDTH)).astype(np.float32)
    key[1] = 0
    forms = unit_forms(query * np.float32(scale), key * np.float32(scale))
    np.testing.assert_allclose(forms, unit_columns(query.swapaxes(1, 2) @ key), atol=1e-6)
    assert np.linalg.norm(forms, axis=0) == pytest.approx([1, 0, 1])


def test_the_statistic_does_not_depend_on_the_order_of_the_heads():
    rng = np.random.default_rng(2)
    a, b = random_forms(rng), random_forms(rng)
    assert statistic([(a, b)]) == pytest.approx(statistic([(a, b[:, [2, 0, 3, 1]])]))


def test_a_draw_is_the_statistic_of_an_explicitly_permuted_model():
    rng = np.random.default_rng(3)
    layers = [(random_forms(rng), random_forms(rng)) for _ in range(2)]
    found = permuted_statistics(layers, 5, 7, flips=True)
    for draw, generator in enumerate(np.random.default_rng([7, 2]).spawn(5)):
        order = generator.permutation(WIDTH)
        signs = np.sign(generator.random(WIDTH) - 0.5)
        moved = []
        for a, b in layers:
            dense = b.T.reshape(-1, WIDTH, WIDTH)[:, order][:, :, order] * np.outer(signs, signs)
            moved.append((a, unit_columns(dense)))
        assert found[draw] == pytest.approx(statistic(moved))


@pytest.mark.parametrize("flips", [False, True])
def test_p_values_of_unrelated_forms_are_uniform(flips):
    rng = np.random.default_rng(4)
    found = []
    for seed in range(200):
        layers = [(random_forms(rng, 2), random_forms(rng, 2))]
        found.append(p_value(statistic(layers), permuted_statistics(layers, 99, seed, flips)))
    assert 0.01 <= np.mean(np.array(found) <= 0.05) <= 0.1  # 5% ± 3 standard deviations
    assert 0.4 < np.mean(found) < 0.6


def test_the_control_pairs_every_layer_with_the_next():
    rng = np.random.default_rng(5)
    forms = [random_forms(rng) for _ in range(3)]
    layers = [(form, form) for form in forms]
    assert statistic(layers) == pytest.approx(1)
    assert wrongly_paired(layers) < 0.6
    assert wrongly_paired(layers[:1]) is None


def test_reduced_forms_are_blocks_of_the_dense_forms():
    rng = np.random.default_rng(6)
    query, key = rng.standard_normal((4, 3, WIDTH)), rng.standard_normal((2, 3, WIDTH))  # [H, r, d], [G, r, d]
    shape = ReducedShape.draw(WIDTH, 5, seed=0)
    shape = ReducedShape(np.array([1, 5, 6]), shape.layers, 0)
    found = reduced_forms(LayerFactors(query.mT, key.mT), shape.dimensions)  # [9, 4]
    for head in range(4):
        block = (query[head].T @ key[head // 2])[np.ix_(shape.dimensions, shape.dimensions)]
        assert found[:, head] == pytest.approx((block / np.linalg.norm(block)).ravel())


def test_the_reduced_shape_is_one_of_the_seed():
    a, b = (ReducedShape.draw(1000, 40, seed=3) for _ in range(2))
    assert (a.dimensions == b.dimensions).all() and a.layers == b.layers and len(a.layers) == 6
    assert (a.heads(64) == b.heads(64)).all() and len(a.heads(64)) == 16
    assert not np.array_equal(a.dimensions, ReducedShape.draw(1000, 40, seed=4).dimensions)


def test_fixed_positions_are_found_in_parts_of_a_config():
    assert has_fixed_positions({"model_type": "x", "decoder": {"model_type": "marian"}})
    assert has_fixed_positions({"model_type": "distilbert", "sinusoidal_pos_embds": True})
    assert not has_fixed_positions({"model_type": "distilbert", "sinusoidal_pos_embds": False})
    assert not has_fixed_positions(None)
