"""The bundled encoder and decoder are small, differ only in their objective, and work like any checkpoint."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import attngeo
from attngeo.data import NAMES, bundled
from attngeo.errors import InputError
from attngeo.training import bundled_records
from attngeo.training.pretraining.config import load_config

TEXT = (Path(__file__).parents[1] / "data" / "austen.txt").read_text()


def scores(name: str) -> dict[str, np.ndarray]:
    """Return scores under the keys of the records: `symmetry` [layers], `head_symmetry` [layers, heads] and so on."""
    frame = attngeo.score(str(bundled(name)), nulls=False).frame.sort("layer", "head")
    layers, heads = frame.filter(frame["head"].is_null()), frame.drop_nulls("head")
    return {
        key: value
        for score in ("symmetry", "directionality")
        for key, value in (
            (score, layers[score].to_numpy()),
            (f"head_{score}", heads[score].to_numpy().reshape(layers.height, -1)),
        )
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_small_and_bf16(name: str) -> None:
    path = bundled(name) / "model.safetensors"
    assert path.stat().st_size <= 3_000_000
    with safe_open(path, "numpy") as file:
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {"BF16"}  # noqa: SIM118


def test_the_models_differ_only_in_their_objective() -> None:
    encoder, decoder = map(bundled, NAMES)
    shapes = []
    for folder in (encoder, decoder):
        with safe_open(folder / "model.safetensors", "numpy") as file:
            shapes.append({key: file.get_slice(key).get_shape() for key in file.keys()})  # noqa: SIM118
    assert shapes[0] == shapes[1]
    configs = [json.loads((folder / "config.json").read_text()) for folder in (encoder, decoder)]
    assert different_keys(*configs) == {"architectures", "is_decoder", "use_cache"}
    assert [config["is_decoder"] for config in configs] == [False, True]
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (encoder / file).read_bytes() == (decoder / file).read_bytes()
    settings = [load_config(folder / "pretrain.toml") for folder in (encoder, decoder)]
    assert different_keys(*map(vars, settings)) == {"objective", "out"}
    assert [config.objective for config in settings] == ["masked", "causal"]
    layers, hidden, heads = settings[0].shape
    assert (layers, hidden, heads, settings[0].vocab) == tuple(
        configs[0][key] for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    )


def different_keys(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """Return the keys whose values differ, or that only one of the two has."""
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


def test_the_encoder_is_symmetric_and_the_decoder_is_not() -> None:
    encoder, decoder = (scores(name)["symmetry"] for name in NAMES)
    assert np.median(encoder) > 0.4 and abs(np.median(decoder)) < 0.2
    assert encoder.min() > decoder.max()


@pytest.mark.parametrize("name", NAMES)
def test_the_last_record_agrees_with_the_weights(name: str) -> None:
    records, config = bundled_records(name), load_config(bundled(name) / "pretrain.toml")
    steps = [row["step"] for row in records]
    assert len(records) >= 12 and steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (0, config.steps)
    losses = [row["eval_loss"] for row in records]
    assert losses == sorted(losses, reverse=True) and losses[0] > math.log(config.vocab) > 2 * losses[-1]
    # The records were scored before each weight was rounded to bf16, by up to one part in 256. Symmetry sums over all
    # weights and changes by at most 2e-4; directionality depends on the few largest norms and changes by 4e-3.
    for key, values in scores(name).items():
        np.testing.assert_allclose(values, records[-1][key], atol=1e-3 if "symmetry" in key else 1e-2, rtol=0)
        assert np.abs(values - records[-2][key]).max() > np.abs(values - records[-1][key]).max()  # not the one before


def test_both_models_start_from_the_same_weights() -> None:
    first = [bundled_records(name)[0] for name in NAMES]
    assert different_keys(*first) == {"eval_loss", "max_logit"}


@pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_model_is_captured_with_its_own_tokenizer(name: str) -> None:
    pytest.importorskip("transformers")
    tensor = attngeo.capture(str(bundled(name)), "The cat sat on the mat.")
    assert isinstance(tensor, attngeo.NetworkTensor)
    tokens = list(tensor.queries)
    assert (tokens[0], tokens[-2:]) == ("[CLS]", [".", "[SEP]"]) and "".join(tokens[1:-2]).startswith("the")
    assert tensor.values.shape == (len(tokens), len(tokens), 16)
    assert list(tensor.heads)[-1] == "L3H3"
    future = np.triu(np.ones(tensor.values.shape[:2], bool), 1)
    seen = attngeo.capture(str(bundled(name)), "The cat sat on the mat.", stage="probabilities")
    assert (seen.values[future].max() == 0) == (name == "decoder")  # only the decoder cannot attend to later tokens


@pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_transformers_loads_a_bundled_model_that_predicts_english(name: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    masked = name == "encoder"
    kind = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    model, report = kind.from_pretrained(bundled(name), output_loading_info=True)
    assert not any(report.values()), report
    assert model.dtype == torch.float32 and model.config.is_decoder != masked
    tokenizer = transformers.AutoTokenizer.from_pretrained(bundled(name))

    def loss(ids: Any) -> float:
        """Return the mean loss of predicting each token from all others, or from those before it."""
        with torch.no_grad():
            if masked:
                rows = ids.repeat(len(ids), 1).fill_diagonal_(tokenizer.mask_token_id)
                logits = model(input_ids=rows).logits.diagonal().mT  # [N, vocabulary]
                return float(torch.nn.functional.cross_entropy(logits[1:], ids[1:]))
            return float(torch.nn.functional.cross_entropy(model(input_ids=ids[None]).logits[0, :-1], ids[1:]))

    ids = tokenizer(TEXT, return_tensors="pt", truncation=True, max_length=64)["input_ids"][0][:-1]
    order = torch.randperm(len(ids) - 1, generator=torch.Generator().manual_seed(0)) + 1
    shuffled = torch.cat([ids[:1], ids[order]])
    # Less than half the loss of guessing among 2048 tokens, and much worse once the words are shuffled.
    assert loss(ids) < math.log(2048) / 2
    assert loss(shuffled) > loss(ids) + 1


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(InputError, match="teacher: no bundled model has this name, there are encoder and decoder"):
        bundled("teacher")


def test_finding_the_folder_loads_no_array_library() -> None:
    script = (
        "import sys, attngeo\n"
        "assert attngeo.bundled('encoder').is_dir()\n"
        "print([name for name in ('numpy', 'polars', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
