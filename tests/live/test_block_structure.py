"""Whether layers of live models read a norm of their block and rotate, for model types of many kinds."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from attngeo.live.checkpoint import LiveCheckpoint, reads_own_norm, rotates
from attngeo.weights.layout.layers import open_layers

# Rotary embedding and a norm before the attention, of which nothing is proved for the live names: the language model is
# a part of another model, the norm has no weights, the norm or the rotation could not be proved, or no model was built.
BOTH = "gemma3 llava mllama nanochat olmo hunyuan_v1_dense dinov3_vit falcon llama gptj"
# Rotary embedding with norms behind the attention; other positions.
NOT_BOTH = "olmo2 roformer bert gpt2 bloom t5 clip"


def kinds(model: Any) -> list[tuple[bool, bool]]:
    """Return (reads a norm of its block, rotates) of each self-attention layer."""
    checkpoint = LiveCheckpoint(model)
    layers = open_layers(checkpoint, norms=True, unproven=True).unread
    modules = checkpoint.modules
    return [(reads_own_norm(layer, modules), rotates(layer, modules)) for layer in layers if not layer.cross]


@pytest.mark.parametrize("kind", [*BOTH.split(), *NOT_BOTH.split()])
def test_model_types_of_many_kinds(kind: str) -> None:
    from tools.proof.tiny_model import config_and_model_class, tiny_config

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = config_and_model_class(kind)[1](tiny_config(kind, 2, 8))
    assert ((True, True) in kinds(model)) is (kind in BOTH.split())


@pytest.mark.parametrize("positions", ["rotary", "absolute"])
def test_esm_reads_a_norm_beside_its_attention(positions: str) -> None:
    from transformers import EsmConfig, EsmModel

    config = EsmConfig(
        vocab_size=40, pad_token_id=1, mask_token_id=3, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=40, position_embedding_type=positions)  # fmt: skip
    assert kinds(EsmModel(config)) == 2 * [(True, positions == "rotary")]


@pytest.mark.parametrize(("settings", "rotates"), [({}, True), ({"alibi": True}, False)])
def test_what_is_proved_about_positions_comes_before_the_names(settings: dict[str, Any], rotates: bool) -> None:
    from transformers import FalconConfig, FalconModel

    config = FalconConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
        new_decoder_architecture=True, **settings)  # fmt: skip
    assert kinds(FalconModel(config)) == 2 * [(True, rotates)]


def test_a_rotation_is_that_of_the_own_stack() -> None:
    """Nothing is proved about Idefics: its language model rotates, its vision model does not."""
    from tools.proof.tiny_model import config_and_model_class, tiny_config

    with torch.device("meta"):
        model = config_and_model_class("idefics")[1](tiny_config("idefics", 2, 8))
    assert set(kinds(model)) == {(True, True), (True, False)}
