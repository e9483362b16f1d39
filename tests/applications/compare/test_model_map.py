"""`compare_all`: the distances and relations of several models."""

from __future__ import annotations

import pytest

import attngeo
from attngeo.applications.compare import compare_all
from attngeo.errors import InputError
from tests.applications.compare.llama_pairs import random_model, save_model, tuned


def test_related_models_are_closest(tmp_path):
    base = random_model(0)
    made = {"base": base, "stranger": random_model(9), "tuned": tuned(base, 0.1)}
    found = compare_all([save_model(tmp_path / name, tensors) for name, tensors in made.items()], draws=99)
    by_models = {(pair.a, pair.b): pair for pair in found.pairs}
    assert by_models[0, 2].distance < 0.1 < min(by_models[0, 1].distance, by_models[1, 2].distance)
    assert by_models[0, 2].p_value == pytest.approx(0.01) and by_models[0, 1].p_value > 0.01


def test_forms_that_cannot_be_paired_have_a_distance_and_the_reason_for_no_verdict(tmp_path):
    pytest.importorskip("ot")
    transformers = pytest.importorskip("transformers")
    encoder, decoder = (attngeo.bundled.bundled(name) for name in ("encoder", "decoder"))
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


def test_too_few_models_or_draws_are_refused():
    encoder = attngeo.bundled.bundled("encoder")
    with pytest.raises(InputError, match="1 model, expected at least two"):
        compare_all([encoder])
    with pytest.raises(InputError, match="draws is 5, expected at least 99"):
        compare_all([encoder, encoder], draws=5)
    for draws in (99.5, float("nan"), "99"):
        with pytest.raises(InputError, match=r"draws is .*, expected a whole number"):
            compare_all([encoder, encoder], draws=draws)
    with pytest.raises(InputError, match="seed is -1, expected a whole number from 0 on"):
        compare_all([encoder, encoder], seed=-1)
    with pytest.raises(InputError, match="models: a str, expected a list of at least two models"):
        compare_all(str(encoder))


def test_the_models_may_come_from_any_iterable():
    models = [attngeo.bundled.bundled(name) for name in ("encoder", "decoder")]
    assert compare_all(iter(models), draws=99) == compare_all(models, draws=99)
