"""`compare_all`: the distances and relations of several models."""

from __future__ import annotations

import numpy as np
import pytest

import attngeo
from attngeo.applications.compare import ModelComparison, ModelMap, compare, compare_all
from attngeo.applications.compare.comparison import FORMS, Pair
from attngeo.errors import InputError
from tests.applications.compare.llama_pairs import random_model, save_model


def test_forms_that_cannot_be_paired_have_a_distance_and_the_reason_for_no_verdict(tmp_path):
    pytest.importorskip("ot")
    transformers = pytest.importorskip("transformers")
    encoder, decoder = (attngeo.bundled(name) for name in ("encoder", "decoder"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 64}
    narrow = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, vocab_size=len(tokenizer)))
    narrow.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    text = "The heads of a network lie close together when they attend alike."
    found = compare_all([encoder, tmp_path, decoder], inputs=text, draws=99)
    verdicts = {(pair.a, pair.b): pair.verdict for pair in found.pairs}
    assert verdicts[0, 1].startswith("no verdict: ") and "have the widths 128 and 64" in verdicts[0, 1]
    assert verdicts[0, 2].startswith("the weights share an origin")  # trained from the same initial values
    assert all(pair.distance > 0 for pair in found.pairs)
    assert ModelMap.load(found.save(tmp_path / "map.json")) == found
    two = compare(encoder, tmp_path, inputs=text, draws=99)
    changed, related, apart, *_ = two.words()
    assert changed == "Changed: no forms can be compared." and "have the widths 128 and 64" in related
    assert "between the geometries of 16 and 6 heads" in apart
    assert ModelComparison.load(two.save(tmp_path / "two.parquet")) == two and two.plot().axes


def test_each_pair_is_compared_with_the_given_seed(tmp_path):
    a, b = (save_model(tmp_path / str(seed), random_model(seed)) for seed in (0, 9))
    found = [compare_all([a, b], draws=99, seed=seed).pairs[0].p_value for seed in range(4)]
    assert found == [compare(a, b, draws=99, seed=seed).related.p_value for seed in range(4)]
    assert len(set(found)) > 1


def test_models_in_a_plane_are_mapped_to_it():
    """Distances between points of the plane are those of their coordinates; they have no third dimension."""
    points = np.random.default_rng(0).normal(size=(5, 2))
    numbered = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    for flat in (1.0, 0.0):  # on a line, the second coordinate is 0
        points[:, 1] *= flat
        pairs = [Pair(i, j, float(np.linalg.norm(points[i] - points[j])), None, "") for i, j in numbered]
        coordinates = ModelMap(tuple("abcde"), FORMS, tuple(pairs)).coordinates
        for pair in pairs:
            assert np.linalg.norm(coordinates[pair.a] - coordinates[pair.b]) == pytest.approx(pair.distance, abs=1e-6)


def zeroed(weights, *layers):
    """Return a copy of the weights with the queries and keys of some layers set to 0."""
    return {name: 0 * w if name.split(".")[1] in map(str, layers) else w for name, w in weights.items()}


def test_a_layer_that_is_zero_in_one_model_alone_is_a_difference():
    rng = np.random.default_rng(0)
    whole = {
        f"layers.{i}.{n}_proj.weight": rng.normal(size=(32, 32)).astype(np.float32) for i in range(3) for n in "qk"
    }
    part, none = zeroed(whole, 1), zeroed(whole, 0, 1, 2)
    options = {"num_heads": 4, "unproven": True, "draws": 99}
    for a, b in ((whole, part), (part, whole)):
        comparison = attngeo.compare(a, b, **options)
        assert not comparison.identical and "identical" not in comparison.words()[0]
        assert comparison.related.cosine == pytest.approx(2 / 3)
        assert compare_all([a, b], **options).pairs[0].distance == pytest.approx(1 / 3)
    assert "Forms that are zero in state dict, but not in state dict: L1, L1H0" in comparison.words()[-1]
    assert attngeo.compare(part, part, **options).identical
    with pytest.raises(InputError, match="are needed to measure their distance"):
        compare_all([none, none], **options)
