"""Whether two models are related: the statistic, its null, the alignment before it, and the verdict."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from attngeo.applications.compare import compare
from attngeo.applications.compare.relation import (
    ReducedShape,
    Relation,
    TokenEmbeddings,
    p_value,
    permuted_statistics,
    statistic,
    unit_forms,
    without_leading,
)
from tests.applications.compare.llama_pairs import HEADS, LAYERS, SIZE, dense_heads, random_model, save_model

WIDTH = 16


def random_forms(rng: np.random.Generator, heads: int = 4) -> np.ndarray:
    return unit_forms(*rng.standard_normal((2, heads, 4, WIDTH)))


@pytest.mark.parametrize("width", [48, 160])
def test_heads_are_matched_as_in_the_best_of_all_orders(tmp_path, width):
    """The test uses some of 160 dimensions, and all of 48; the mean of all heads is on all dimensions."""
    models = [random_model(seed, width=width) for seed in (0, 9)]
    found = compare(*(save_model(tmp_path / str(seed), one) for seed, one in enumerate(models)), draws=99)
    dimensions = ReducedShape.draw(width, LAYERS, seed=0).dimensions
    assert len(dimensions) == min(width, 128)

    forms = []  # [layers, heads, d, d] of each model
    for model in models:
        weights = [[model[f"model.layers.{at}.self_attn.{side}_proj.weight"] for side in "qk"] for at in range(LAYERS)]
        forms.append(np.array([dense_heads(*sides, SIZE) for sides in weights]))

    def cosines(some: np.ndarray, shift: int = 0) -> np.ndarray:  # [layers, heads, heads]
        a, b = (dense[..., some[:, None], some] for dense in forms)
        a, b = (dense / np.linalg.norm(dense, axis=(2, 3), keepdims=True) for dense in (a, b))
        return np.abs(np.einsum("laij,lbij->lab", a, np.roll(b, -shift, axis=0)))

    def best(values: np.ndarray) -> np.ndarray:  # [layers, heads]
        orders = np.array(list(permutations(range(HEADS))))
        return np.array([orders[one[range(HEADS), orders].sum(1).argmax()] for one in values])

    def mean(values: np.ndarray, orders: np.ndarray) -> float:
        return float(np.take_along_axis(values, orders[..., None], axis=2).mean())

    reduced, wrong = cosines(dimensions), cosines(dimensions, shift=1)
    assert found.changes.drop_nulls("head")["match"].to_list() == best(reduced).ravel().tolist()
    assert found.related.statistic == pytest.approx(mean(reduced, best(reduced)))
    assert found.related.cosine == pytest.approx(mean(cosines(np.arange(width)), best(reduced)))
    assert found.related.control == pytest.approx(mean(wrong, best(wrong)))


def test_one_layer_has_no_control(tmp_path):
    one = save_model(tmp_path / "one", random_model(0, layers=1))
    assert compare(one, one, draws=99).related.control is None


@pytest.mark.parametrize("flips", [False, True])
def test_a_draw_permutes_the_hidden_dimensions_and_flips_the_signs_only_of_models_with_rms_norm(tmp_path, flips):
    """LayerNorm subtracts the mean, so that flipped signs would be another model."""
    model_type = {"model_type": "llama" if flips else "persimmon"}
    made = [random_model(seed) for seed in (0, 9)]
    found = compare(*(save_model(tmp_path / str(seed), one, **model_type) for seed, one in enumerate(made)), draws=99)
    layers = [
        [
            [one[f"model.layers.{at}.self_attn.{side}_proj.weight"].reshape(-1, SIZE, 48) for side in "qk"]
            for one in made
        ]
        for at in range(LAYERS)
    ]
    null = []
    for generator in np.random.default_rng([0, 2]).spawn(99):
        order, signs = generator.permutation(48), np.ones(48)
        if flips:
            signs = np.sign(generator.random(48) - 0.5)
        sides = [(a, [side[..., order] * signs for side in b]) for a, b in layers]
        null.append(statistic([[unit_forms(q, np.repeat(k, 2, 0)) for q, k in both] for both in sides]))
    assert found.related.null_mean == pytest.approx(np.mean(null))


@pytest.mark.parametrize("flips", [False, True])
def test_p_values_of_unrelated_forms_are_uniform(flips):
    rng = np.random.default_rng(4)
    found = []
    for seed in range(200):
        layers = [(random_forms(rng, 2), random_forms(rng, 2))]
        found.append(p_value(statistic(layers), permuted_statistics(layers, 99, seed, flips)))
    assert 0.01 <= np.mean(np.array(found) <= 0.05) <= 0.1  # 5% ± 3 standard deviations
    assert 0.4 < np.mean(found) < 0.6


def test_draws_that_equal_the_statistic_count():
    assert p_value(0.5, np.array([0.4, 0.5, 0.6])) == 3 / 4


@pytest.mark.parametrize(("above", "related"), [(0, True), (1, False)])
def test_a_common_origin_needs_a_p_value_of_one_percent(above, related):
    forms = np.eye(16)[:, :3]
    null = np.where(np.arange(99) < above, 2.0, 0.1)
    relation = Relation.judged([(forms, forms)], null, cosine=0.7)
    assert relation.p_value == pytest.approx((1 + above) / 100) and relation.related is related
    assert relation.verdict.startswith("the weights share an origin, p ≤" if related else "no sign of a common origin")
    assert (relation.cosine, relation.statistic, relation.draws) == (0.7, 1.0, 99)


@pytest.mark.parametrize("shape", [(60, 11), (11, 60)])
def test_the_leading_half_of_the_principal_components_is_removed(shape: tuple[int, int]) -> None:
    embedding = np.random.default_rng(0).normal(size=shape)
    left, values, right = np.linalg.svd(embedding - embedding.mean(0), full_matrices=False)
    values[:5] = 0  # 11 // 2
    np.testing.assert_allclose(without_leading(embedding), left * values @ right, atol=1e-12)


def test_tokens_are_shuffled_within_their_deciles() -> None:
    decile = np.repeat(np.arange(10), 8)
    rows = np.stack([decile, np.arange(80)], 1).astype(np.float64)  # [80, 2]
    embeddings = TokenEmbeddings(rows, rows, decile)
    shuffled = embeddings.shuffled(np.random.default_rng(0))
    assert shuffled.a[:, 0].tolist() == decile.tolist() and shuffled.b is embeddings.b
    assert shuffled.a[:, 1].tolist() != rows[:, 1].tolist() and set(shuffled.a[:, 1]) == set(rows[:, 1])
