"""Weights in a checkpoint that the model does not use are not scored."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

import attngeo

pytest.importorskip("torch")
pytest.importorskip("transformers")


def test_layers_that_read_the_keys_of_an_earlier_one_are_left_out(tmp_path: Path) -> None:
    from transformers import Gemma4TextConfig, Gemma4TextModel

    kinds = ["sliding_attention", "full_attention"]
    model = Gemma4TextModel(Gemma4TextConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        global_head_dim=8, intermediate_size=40, num_kv_shared_layers=2, layer_types=2 * kinds,
        vocab_size_per_layer_input=60, hidden_size_per_layer_input=8))  # fmt: skip
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    own = [layer for layer in range(4) if f"layers.{layer}.self_attn.k_proj.weight" in weights]
    assert own == [0, 1]
    # Published checkpoints hold key weights in all layers; transformers ignores those of the layers that share keys.
    for layer in (2, 3):
        for name in ("k_proj", "v_proj", "k_norm"):
            weights[f"layers.{layer}.self_attn.{name}.weight"] = weights[f"layers.0.self_attn.{name}.weight"] * 2
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert [layer.layer for layer in attngeo.attention_layers(tmp_path)] == own


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    model = Glm4MoeForCausalLM(Glm4MoeConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=40, moe_intermediate_size=8, n_routed_experts=2, num_experts_per_tok=1,
        first_k_dense_replace=2, num_nextn_predict_layers=1))  # fmt: skip
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in ("q_proj", "k_proj"):
        further = weights[f"model.layers.1.self_attn.{name}.weight"] * 2
        weights[f"model.layers.2.self_attn.{name}.weight"] = further
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert [layer.layer for layer in attngeo.attention_layers(tmp_path)] == [0, 1]
    (note,) = [note for note in attngeo.score(tmp_path).notes if "left out" in note]
    assert note.endswith("the model does not run them with these weights: model.layers.2.self_attn")
