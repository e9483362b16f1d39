"""The comparison experiment in small: models, rejection rates, power."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attngeo.applications.compare.distance import HeadGeometry
from attngeo.training.data.tokens import Tokens, prepare_tokens
from experiments.comparison import distances, power
from experiments.comparison.false_positives import independent_rejections, trained_rejections
from experiments.comparison.small_models import new_model, trained_models


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Tokens:
    folder = tmp_path_factory.mktemp("corpus")
    text = "\n\n".join(f"The head {i} of layer {i % 7} attends to the word {i * i}." for i in range(600))
    (folder / "corpus.txt").write_text(text)
    return prepare_tokens(folder / "tokens", [str(folder / "corpus.txt")], vocabulary=200)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_training_moves_a_model_and_is_repeatable(kind, tokens, tmp_path):
    paths = trained_models(tmp_path / "a", kind, tokens, [0], 2) + trained_models(tmp_path / "b", kind, tokens, [0], 2)
    first, second = (Path(path, "model.safetensors").read_bytes() for path in paths)
    assert first == second
    found = power.fine_tuned(paths[0], tokens, [1, 3])
    assert 0 < found[1].sorted()["change"].max() < found[3].sorted()["change"].max()
    assert found[3].related.p_value == 0.001


def test_rejections_count_pairs_and_resample_models(tokens, tmp_path):
    models = trained_models(tmp_path, "bert", tokens, [0, 1, 2], 1)
    found = trained_rejections(models, align=False)
    assert found.pairs == len(found.p_values) == 3
    assert all(0 <= low <= rate <= high <= 1 for rate, low, high in found.rates.values())
    same = new_model("bert", tokens.vocabulary, 5)
    assert independent_rejections([(same, same)], align=False).rates["0.01"][0] == 1


def test_permuted_copies_are_found_by_alignment_only(tokens, tmp_path):
    (path,) = trained_models(tmp_path, "llama", tokens, [0], 2)
    found = power.permuted(path, 1, tokens)
    assert found[False].related.p_value > 0.01 and found[True].related.p_value == 0.01


def test_the_time_correlation_is_one_where_distance_falls_with_time():
    steps = np.abs(np.arange(4.0)[:, None] - np.arange(4.0))
    depth, curve = np.arange(4) / 4, np.ones(64)
    geometries = [HeadGeometry(np.exp(-scale * steps), depth, curve) for scale in (4, 3, 2, 1)]
    pytest.importorskip("ot")
    assert distances.time_correlation(distances.distance_matrix(geometries)) == pytest.approx(1)
