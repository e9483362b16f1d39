"""Real checkpoints against the live models made from them: a quantised GGUF, safetensors, an old `.bin`."""

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

from attngeo import attention_layers
from attngeo.weights.layout.attention_weights import AttentionWeights
from tools.proof.listen import NAME, Product, listening
from tools.proof.prove import TOLERANCE, agreement, swap_fails


def hear(model: nn.Module, tokens: Sequence[int], **arguments: Any) -> list[Product]:
    """The products of every layer, in order, biases of queries and keys aside: M_h has none."""
    for name, parameter in model.named_parameters():
        if name.endswith(("query.bias", "key.bias")):
            parameter.data.zero_()
    inputs: Tensor = torch.tensor([list(tokens)])
    with listening() as ear, torch.no_grad():
        model.eval()(input_ids=inputs, **arguments)
    return ear.products


def check(layers: list[AttentionWeights], heard: list[Product]) -> None:
    """Each layer explains its own product and no other, and not with its heads exchanged."""
    for weights in layers:
        product = heard[weights.layer]
        assert agreement(weights, product) < TOLERANCE
        assert agreement(weights, heard[weights.layer - 1]) > 1e-2
        assert swap_fails(weights, product)
        wrong = dataclasses.replace(weights, key=weights.key[::-1])
        assert agreement(wrong, product) > 1e-2


@pytest.mark.slow  # transformers takes its time over a GGUF's vocabulary
def test_smollm2_gguf(smollm2: Path) -> None:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    assert (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) == (30, 9, 3)
    config.num_hidden_layers = 8  # loading all thirty shows nothing more
    options: dict[str, Any] = {"attn_implementation": NAME, "dtype": torch.float32}
    model = AutoModel.from_pretrained(smollm2.parent, config=config, gguf_file=smollm2.name, **options)
    sentence = [504, 2644, 2643, 335, 260, 1171, 975, 357, 436, 3091, 30]  # The cat sat on the mat because it was warm.
    heard = hear(model, sentence, use_cache=False)
    assert len(heard) == 8
    layers = list(attention_layers(smollm2, layers=[0, 3, 7]))
    assert [(w.stack, w.layer, w.query.shape, w.key.shape) for w in layers] == [
        ("decoder", layer, (9, 576, 64), (3, 576, 64)) for layer in (0, 3, 7)
    ]
    check(layers, heard)
    modulo = np.argsort(np.arange(9) % 3, kind="stable")  # query head h with key head h mod G
    assert agreement(dataclasses.replace(layers[0], query=layers[0].query[modulo]), heard[0]) > 1e-2


def test_minilm_safetensors(minilm: Path) -> None:
    from transformers import AutoTokenizer, BertModel

    tokens = AutoTokenizer.from_pretrained(minilm)("A head reads the words before it and the words behind it.")
    model = BertModel.from_pretrained(minilm, attn_implementation=NAME)
    heard = hear(model, tokens["input_ids"])
    layers = list(attention_layers(minilm))
    assert [(w.stack, w.query.shape) for w in layers] == [("encoder", (12, 384, 32))] * 6
    assert len(heard) == 6
    check(layers, heard)


def test_rxnfp_bin(rxnfp: Path) -> None:
    from transformers import BertModel

    model = BertModel.from_pretrained(rxnfp / "bert_ft", attn_implementation=NAME)
    heard = hear(model, [12, 16, 16, 19, 24, 16, 23, 29, 16, 16, 23, 16, 13])  # CCO.CN>>CCNC between [CLS] and [SEP]
    layers = list(attention_layers(rxnfp / "bert_ft"))
    assert len(layers) == len(heard) == model.config.num_hidden_layers
    assert layers[0].query.shape == (model.config.num_attention_heads, 256, 64)
    check(layers, heard)
