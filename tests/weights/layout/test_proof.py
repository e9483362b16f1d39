"""Extraction against live models: sixty-odd model types stay right, and a wrong pairing is noticed."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo.weights.layout import families

# The families of Saponati et al., then those people use now, then one of each unusual storage.
KEPT_RIGHT = """
bert roberta xlm-roberta albert distilbert deberta deberta-v2 electra modernbert openai-gpt gpt2 gpt_neo gptj gpt_neox
llama mistral mixtral phi phi3 t5 bart vit beit deit dinov2 vit_mae detr mask2former sam imagegpt git swin clip
wav2vec2 hubert wavlm unispeech speech_to_text whisper speecht5 musicgen
qwen2 qwen3 gemma2 gemma3 olmo2 falcon bloom mpt opt gpt_bigcode starcoder2 deepseek_v3 cohere
codegen xlnet funnel qwen3_next gpt_oss stablelm persimmon xlm dinov3_vit siglip
"""


@pytest.fixture(autouse=True)
def forget():
    """What the proof told attngeo about a type is forgotten again."""
    yield
    families.families.cache_clear()
    families.family.cache_clear()


@pytest.mark.parametrize("model_type", KEPT_RIGHT.split())
def test_live_products_agree(model_type: str) -> None:
    from tools.prove_all import prove_type

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers and torch warn about tiny models of many kinds
        verdict = prove_type(model_type)
    assert verdict["status"] == "right", verdict["reason"]
    assert verdict["layers"] >= 1
    assert verdict["worst"] <= 1e-4


def _heard():
    """A grouped-query model, what was cut from it and what it computed."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    from attngeo import attention_layers
    from tools.proof import prove
    from tools.proof.listen import NAME

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
    prove.randomise(model)
    heard, errors = prove.hear_model(model, config)
    assert not errors
    return next(iter(attention_layers(model))), heard


def test_wrong_group_pairing_is_noticed() -> None:
    from tools.proof.prove import agreement

    weights, heard = _heard()
    assert min(agreement(weights, product) for product in heard) < 1e-4
    # the research code's slip: query head h with key head h mod G
    order = np.argsort(np.arange(6) % 2, kind="stable")
    wrong = dataclasses.replace(weights, query=weights.query[order])
    assert min(agreement(wrong, product) for product in heard) > 1e-2


def test_exchanged_keys_and_transposed_weights_are_noticed() -> None:
    from tools.proof.prove import agreement

    weights, heard = _heard()
    wrong = dataclasses.replace(weights, key=weights.key[::-1])
    assert min(agreement(wrong, product) for product in heard) > 1e-2
    rolled = dataclasses.replace(weights, query=np.roll(weights.query, 1, axis=2))
    assert min(agreement(rolled, product) for product in heard) > 1e-2
