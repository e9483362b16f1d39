"""Extraction against live models: more than sixty model types stay right, and a wrong pairing of heads is noticed."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo import Layer
from tools.proof.agreement import agreement
from tools.proof.product_recorder import Product

# The families of Saponati et al., then those most used today, then one of each unusual storage.
MODEL_TYPES = """
bert roberta xlm-roberta albert distilbert deberta deberta-v2 electra modernbert openai-gpt gpt2 gpt_neo gptj gpt_neox
llama mistral mixtral phi phi3 t5 bart vit beit deit dinov2 vit_mae detr mask2former sam imagegpt git swin clip
wav2vec2 hubert wavlm unispeech speech_to_text whisper speecht5 musicgen
qwen2 qwen3 gemma2 gemma3 olmo2 falcon bloom mpt opt gpt_bigcode starcoder2 deepseek_v3 cohere
codegen xlnet funnel qwen3_next gpt_oss stablelm persimmon xlm dinov3_vit siglip
granitemoehybrid olmo_hybrid kimi_linear mimo_v2_flash t5gemma2
"""


# One of each storage, and what makes a type unusual beside it; the others are proved by `make test-all`.
QUICK = """
bert deberta modernbert gpt2 gpt_neox llama phi3 t5 whisper gemma3 falcon gpt_bigcode deepseek_v3 codegen xlnet
qwen3_next persimmon mimo_v2_flash
"""

pytestmark = pytest.mark.usefixtures("restored_facts")


@pytest.mark.parametrize(
    "model_type",
    [kind if kind in QUICK.split() else pytest.param(kind, marks=pytest.mark.slow) for kind in MODEL_TYPES.split()],
)
def test_extracted_heads_reproduce_the_live_products(model_type: str) -> None:
    from tools.prove_all import prove_type

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers and torch warn about tiny models of many kinds
        verdict = prove_type(model_type, rotation=False)  # test_proof_rotary.py covers the rotation
    assert verdict["status"] == "right", verdict["reason"]
    assert verdict["layers"] >= 1
    assert verdict["worst"] <= 1e-4


def grouped_query_layer() -> tuple[Layer, list[Product]]:
    """Return a layer cut from a model with grouped-query attention, and the products of the model."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    from attngeo import attention_layers
    from tools.proof.comparable_model import randomise
    from tools.proof.product_recorder import NAME
    from tools.proof.prove import record_model

    config = LlamaConfig(
        hidden_size=48,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_hidden_layers=1,
        intermediate_size=32,
        vocab_size=64,
    )
    torch.manual_seed(0)
    model = LlamaModel._from_config(config, attn_implementation=NAME).eval()
    randomise(model)
    products, errors = record_model(model, config)
    assert not errors
    return next(iter(attention_layers(model))), products


def test_heads_that_are_paired_or_cut_wrongly_are_noticed() -> None:
    weights, products = grouped_query_layer()
    assert min(agreement(weights, product) for product in products) < 1e-4
    order = np.argsort(np.arange(6) % 2, kind="stable")  # query head h with key head h mod G, as in the research code
    for wrong in (
        dataclasses.replace(weights, query=weights.query[order]),
        dataclasses.replace(weights, key=weights.key[::-1]),
        dataclasses.replace(weights, query=np.roll(weights.query, 1, axis=2)),
    ):
        assert min(agreement(wrong, product) for product in products) > 1e-2
