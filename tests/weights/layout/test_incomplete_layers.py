"""A checkpoint with a layer that lacks its queries or its keys is refused, and the line names the layer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attngeo
from attngeo.errors import LayoutError
from tests.weights.made_checkpoints import LLAMA_CONFIG, llama_like_tensors, safetensors_bytes


def left_out(table: attngeo.ScoreTable) -> list[str]:
    """Return the notes about layers that are not scored, without the name of the model."""
    return [note.partition(": ")[2] for note in table.notes if "left out" in note]


def saved(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder


@pytest.mark.parametrize("missing", ["q_proj.weight", "k_proj.weight"])
def test_a_layer_without_its_queries_or_its_keys_is_named(missing: str, tmp_path: Path) -> None:
    tensors = llama_like_tensors()
    del tensors[f"model.layers.1.self_attn.{missing}"]
    saved(tmp_path, LLAMA_CONFIG, tensors)
    lacks = f"model.layers.1.self_attn lacks {missing}, which other layers of its stack have"
    for options in ({}, {"stack": "decoder"}):
        with pytest.raises(LayoutError, match=re.escape(lacks)):
            attngeo.score(tmp_path, nulls=False, **options)
    done = subprocess.run([sys.executable, "-m", "attngeo", "score", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2 and lacks in done.stderr


def test_experts_shared_between_tokens_are_not_keys_shared_between_layers(tmp_path: Path) -> None:
    tensors = llama_like_tensors()
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(LayoutError, match=r"model\.layers\.1\.self_attn lacks k_proj\.weight"):
        attngeo.score(saved(tmp_path, LLAMA_CONFIG | {"n_shared_experts": 1}, tensors), nulls=False)


def test_missing_parts_of_latent_attention_are_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from safetensors.numpy import load_file
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    DeepseekV3ForCausalLM(DeepseekV3Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=40, first_k_dense_replace=3, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4,
        qk_rope_head_dim=4, v_head_dim=4)).save_pretrained(tmp_path)  # fmt: skip
    tensors = load_file(tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    layer = "model.layers.1.self_attn"
    for missing in (("q_b_proj.weight",), ("kv_b_proj.weight", "kv_a_proj_with_mqa.weight"), ("q_a_proj.weight",)):
        kept = {name: tensor for name, tensor in tensors.items() if name not in {f"{layer}.{m}" for m in missing}}
        with pytest.raises(LayoutError, match=f"{layer} lacks {', '.join(missing)}, which"):
            attngeo.score(saved(tmp_path, config, kept), nulls=False)


def test_two_streams_that_share_one_product_are_told_apart(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=2, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8))  # fmt: skip
    assert left_out(attngeo.score(model, nulls=False)) == []
    del model.transformer_blocks[1].attn.add_q_proj
    with pytest.raises(LayoutError, match=r"transformer_blocks\.1\.attn\.second lacks add_q_proj\.weight"):
        attngeo.score(model, nulls=False)


def test_layers_that_read_the_keys_of_another_one_lack_nothing() -> None:
    pytest.importorskip("transformers")
    from transformers import Gemma4TextConfig, Gemma4TextModel

    model = Gemma4TextModel(Gemma4TextConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        global_head_dim=8, intermediate_size=40, num_kv_shared_layers=2, vocab_size_per_layer_input=60,
        layer_types=2 * ["sliding_attention", "full_attention"], hidden_size_per_layer_input=8))  # fmt: skip
    paths = "layers.2.self_attn, layers.3.self_attn"
    expected = [f"layers are left out, because they read the keys of another layer: {paths}"]
    assert left_out(attngeo.score(model, nulls=False)) == expected
    del model.layers[0].self_attn.k_proj  # which is its own
    with pytest.raises(LayoutError, match=r"layers\.0\.self_attn lacks k_proj\.weight"):
        attngeo.score(model, nulls=False)


# Layers without attention (Jamba, Bamba, Zamba 2, Nemotron-H, LFM2, RecurrentGemma), linear attention (MiniMax,
# Qwen3-Next), encoder-decoders, cross-attention in some layers (Mllama), and keys that are values too (Gemma 4).
WHOLE = [
    "jamba", "bamba", "zamba2", "nemotron_h", "lfm2", "recurrent_gemma", "falcon_h1", "minimax",
    "qwen3_next", "t5", "bart", "whisper", "mllama", "gemma4_text", "moshi", "idefics",
]  # fmt: skip


@pytest.mark.parametrize("kind", WHOLE)
def test_nothing_is_missing_from_whole_models(kind: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from attngeo.weights.layout.find import find_layers
    from attngeo.weights.layout.left_out import incomplete_layers
    from attngeo.weights.sources.open import open_checkpoint
    from tools.proof.tiny_model import config_and_model_class, tiny_config

    with torch.device("meta"):
        model = config_and_model_class(kind)[1](tiny_config(kind, 8, 8))
    checkpoint = open_checkpoint(model)
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    sites = find_layers(shapes, checkpoint.config)
    assert sites and incomplete_layers(shapes, sites) == []
    # One tensor less is noticed wherever another layer of the stack has it.
    stacks = {site.template: [one for one in sites if one.template == site.template] for site in sites}
    for stack in stacks.values():
        if len(stack) > 1 and len(stack[-1].tensors) > 1:
            for name in stack[-1].tensors:
                less = {other: shape for other, shape in shapes.items() if other != name}
                incomplete = incomplete_layers(less, find_layers(less, checkpoint.config))
                assert [layer.path for layer, _ in incomplete] == [stack[-1].path]


@pytest.mark.parametrize("gate", ["A_log", "forget_gate.A_log"])  # in files, in live models
def test_linear_attention_beside_latent_attention_is_not_an_incomplete_layer(gate: str, tmp_path: Path) -> None:
    """Kimi Linear: the queries of both kinds of layers are called q_proj."""
    random = np.random.default_rng(0)
    shapes = {
        "0.self_attn.q_proj.weight": (16, 8), "0.self_attn.k_proj.weight": (16, 8), f"0.self_attn.{gate}": (2,),
        "1.self_attn.q_proj.weight": (24, 8), "1.self_attn.kv_a_proj_with_mqa.weight": (10, 8),
        "1.self_attn.kv_a_layernorm.weight": (6,), "1.self_attn.kv_b_proj.weight": (24, 6),
    }  # fmt: skip
    tensors = {f"model.layers.{name}": random.normal(size=shape).astype("f4") for name, shape in shapes.items()}
    config = {"model_type": "kimi_linear", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
              "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 4, "kv_lora_rank": 6, "q_lora_rank": None,
              "linear_head_dim": 8}  # fmt: skip
    table = attngeo.score(saved(tmp_path, config, tensors), nulls=False)
    assert table.frame["layer"].unique().to_list() == [1] and table.notes == ()


def test_head_sizes_of_linear_attention_are_not_those_of_attention(tmp_path: Path) -> None:
    """OLMo hybrids declare no head size for attention, but those of their linear attention."""
    config = LLAMA_CONFIG | {"linear_key_head_dim": 96, "linear_value_head_dim": 192}
    config.pop("head_dim", None)
    assert attngeo.score(saved(tmp_path, config, llama_like_tensors()), nulls=False).frame.height
