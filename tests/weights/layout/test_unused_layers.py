"""Weights in a checkpoint that the model does not use are not scored."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import attngeo
from attngeo.weights.layout.layers import open_layers

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


# Model type → where its checkpoints keep the layers that predict further tokens.
FURTHER = {
    "qwen3_next": "mtp.layers",
    "qwen3_5": "mtp.layers",  # with a vision tower
    "exaone_moe": "mtp.layers",
    "nemotron_h": "mtp.layers",
    "granite_docling": "mtp.layers",  # sorted before the text model
    "minimax_m3_vl": "mtp.layers",
    "mellum": "mtp.layers",
    "ernie4_5_moe": "model.mtp_block",
    "hy_v4": "model.mtp_layers",
}


@pytest.mark.parametrize("kind", FURTHER)
def test_layers_that_predict_further_tokens_are_left_out_under_names_of_their_own(kind: str, tmp_path: Path) -> None:
    """transformers does not load them; the layers that it does load are scored as if the others were not there."""
    from tools.proof.tiny_model import tiny_models

    model = next(iter(tiny_models(kind)))
    model.save_pretrained(tmp_path)
    before = attngeo.score(tmp_path, nulls=False)
    with open_layers(tmp_path, stack={"decoder", "text"} & set(before.frame["stack"])) as layers:
        attention = layers.unread[-1].path
    weights = load_file(tmp_path / "model.safetensors")
    own = [name for name in weights if name.startswith(f"{attention}.")]
    further = {f"{FURTHER[kind]}.0.{name.removeprefix(attention.rpartition('.')[0] + '.')}": name for name in own}
    patterns = [re.compile(pattern) for pattern in type(model)._keys_to_ignore_on_load_unexpected]
    assert further and all(any(pattern.search(name) for pattern in patterns) for name in further)
    made = {name: 2 * weights[source] for name, source in further.items()}
    save_file(weights | made, tmp_path / "model.safetensors", {"format": "pt"})
    after = attngeo.score(tmp_path, nulls=False)
    assert after.frame.equals(before.frame)
    (note,) = set(after.notes) - set(before.notes)
    assert f"the model does not run them with these weights: {FURTHER[kind]}.0." in note


def test_a_model_with_nothing_but_further_tokens_is_scored(tmp_path: Path) -> None:
    """It drafts tokens for another one. The layers of a model without a config are all its own too."""
    config = {"model_type": "qwen3", "num_attention_heads": 2, "hidden_size": 8, "num_hidden_layers": 1}
    config |= {"head_dim": 4, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = np.random.default_rng(0).normal(size=(2, 2, 8, 8)).astype(np.float32)
    named = {f"mtp.layers.0.self_attn.{name}_proj.weight": one for name, one in zip("qk", made[0], strict=True)}
    save_file(named, tmp_path / "model.safetensors", {"format": "pt"})
    table = attngeo.score(tmp_path, nulls=False)
    assert table.frame["head"].max() == 1 and not any("left out" in note for note in table.notes)
    named |= {f"layers.0.self_attn.{name}_proj.weight": one for name, one in zip("qk", made[1], strict=True)}
    assert attngeo.score(named, num_heads=2, nulls=False).frame["stack"].n_unique() == 2
