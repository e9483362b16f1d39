"""Real checkpoints against the live models loaded from them: a quantised GGUF, safetensors, an old `.bin`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn

from attngeo import RotaryPairs, attention_layers
from attngeo.weights.layout.layer import Layer
from tools.proof.agreement import TOLERANCE, agreement, compare, exchange_is_noticed, product_error
from tools.proof.example_inputs import spread_positions
from tools.proof.product_recorder import NAME, Product, recorded_products


def record_products(model: nn.Module, tokens: Sequence[int], **arguments: Any) -> list[Product]:
    """Return the products of every layer, in order, with the biases of queries and keys set to zero: M_h has none."""
    for name, parameter in model.named_parameters():
        if name.endswith(("query.bias", "key.bias")):
            parameter.data.zero_()
    inputs: Tensor = torch.tensor([list(tokens)])
    with recorded_products() as recorder, torch.no_grad():
        model.eval()(input_ids=inputs, **arguments)
    return recorder.products


def check_layers(layers: list[Layer], products: list[Product]) -> None:
    """Check that each layer reproduces its own product and no other, and does not with its heads exchanged."""
    for weights in layers:
        product = products[weights.layer]
        assert agreement(weights, product) < TOLERANCE
        assert agreement(weights, products[weights.layer - 1]) > 1e-2
        assert exchange_is_noticed(weights, product)
        wrong = dataclasses.replace(weights, key=weights.key[::-1])
        assert agreement(wrong, product) > 1e-2


def check_rotation(layers: list[Layer], model: nn.Module, tokens: Sequence[int]) -> None:
    """Check x_i M_Δ x_jᵀ of each layer at offsets from −311 to 311, and that wrong pairs are noticed."""
    positions = spread_positions(len(tokens))  # [1, N]
    with recorded_products(rotating=True) as recorder, torch.no_grad():
        model(input_ids=torch.tensor([list(tokens)]), position_ids=positions, use_cache=False)
    for weights in layers:
        product = dataclasses.replace(recorder.products[weights.layer], positions=positions)
        match = compare(weights, product, weights.rotary)
        assert match is not None and match.error < TOLERANCE
        assert agreement(weights, product) > 1e-2  # without rotation
        assert weights.rotary is not None
        wrong = RotaryPairs.halves(weights.rotary.frequencies)  # as in files without llama.cpp's permutation
        assert product_error(weights, product, match, wrong, positions) > 1e-2


@pytest.mark.slow  # transformers takes long to read the vocabulary of a GGUF
def test_the_gguf_of_smollm2_agrees_with_its_live_model(smollm2: Path) -> None:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    assert (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) == (30, 9, 3)
    config.num_hidden_layers = 8  # all thirty would show nothing more
    options: dict[str, Any] = {"attn_implementation": NAME, "dtype": torch.float32}
    model = AutoModel.from_pretrained(smollm2.parent, config=config, gguf_file=smollm2.name, **options)
    sentence = [504, 2644, 2643, 335, 260, 1171, 975, 357, 436, 3091, 30]  # The cat sat on the mat because it was warm.
    products = record_products(model, sentence, use_cache=False)
    assert len(products) == 8
    layers = list(attention_layers(smollm2, layers=[0, 3, 7]))
    assert [(w.stack, w.layer, w.query.shape, w.key.shape) for w in layers] == [
        ("decoder", layer, (9, 576, 64), (3, 576, 64)) for layer in (0, 3, 7)
    ]
    check_layers(layers, products)
    check_rotation(layers, model, sentence)
    modulo = np.argsort(np.arange(9) % 3, kind="stable")  # query head h with key head h mod G
    assert agreement(dataclasses.replace(layers[0], query=layers[0].query[modulo]), products[0]) > 1e-2


def test_the_safetensors_of_minilm_agree_with_its_live_model(minilm: Path) -> None:
    from transformers import AutoTokenizer, BertModel

    tokens = AutoTokenizer.from_pretrained(minilm)("A head reads the words before it and the words behind it.")
    model = BertModel.from_pretrained(minilm, attn_implementation=NAME)
    products = record_products(model, tokens["input_ids"])
    layers = list(attention_layers(minilm))
    assert [(w.stack, w.query.shape) for w in layers] == [("encoder", (12, 384, 32))] * 6
    assert len(products) == 6
    check_layers(layers, products)


def test_the_bin_file_of_rxnfp_agrees_with_its_live_model(rxnfp: Path) -> None:
    from transformers import BertModel

    model = BertModel.from_pretrained(rxnfp / "bert_ft", attn_implementation=NAME)
    products = record_products(
        model, [12, 16, 16, 19, 24, 16, 23, 29, 16, 16, 23, 16, 13]
    )  # CCO.CN>>CCNC between [CLS] and [SEP]
    layers = list(attention_layers(rxnfp / "bert_ft"))
    assert len(layers) == len(products) == model.config.num_hidden_layers
    assert layers[0].query.shape == (model.config.num_attention_heads, 256, 64)
    check_layers(layers, products)
