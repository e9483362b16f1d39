"""Attention layers that are not scored are named, so that nobody takes a part of a model for the whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import attngeo
from attngeo.errors import LayoutError
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.sources.open import open_checkpoint
from tests.weights.made_checkpoints import LLAMA_CONFIG, llama_like_tensors, safetensors_bytes

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TINY = {"vocab_size": 60, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40}
GEMMA4 = TINY | {
    "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8, "num_kv_shared_layers": 2,
    "layer_types": 2 * ["sliding_attention", "full_attention"], "vocab_size_per_layer_input": 60,
    "hidden_size_per_layer_input": 8,
}  # fmt: skip


def left_out(table: attngeo.ScoreTable) -> list[str]:
    """Return the notes about layers that are not scored, without the name of the model."""
    return [note.partition(": ")[2] for note in table.notes if "left out" in note]


def saved(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder


def tiny(kind: str, device: str = "cpu") -> Any:
    """Return a tiny model of a type, with random weights or, on the meta device, with none."""
    from tools.proof.tiny_model import config_and_model_class, tiny_config, tiny_models

    if device == "cpu":
        return next(tiny_models(kind))
    with torch.device(device):
        return config_and_model_class(kind)[1](tiny_config(kind, 8, 8))


# Layers whose layout is unknown.


def test_query_projections_outside_the_known_layers_are_named() -> None:
    made = np.random.default_rng(0).normal(size=(24, 8)).astype(np.float32)
    unknown = [
        "tower.blocks.3.wqkvs.q_a", "tower.blocks.4.wqkvs.q_a", "language.layers.0.attn.wq_du",
        "x.0.sa_qcontent_proj",
    ]  # fmt: skip
    others = [
        "query_position_embeddings", "query_feat", "dot_product_scoring.query_proj",
        "former.layer.0.intermediate_query.dense", "layers.0.linear_attn.in_proj_qkv",
        "layers.1.self_attn.indexer.wq_b", "layers.2.self_attn.qkv_proj", "layers.2.self_attn.output_gate",
    ]  # fmt: skip
    known = ["text.layers.0.attn.q_proj", "text.layers.0.attn.k_proj"]
    weights = {f"{name}.weight": made[:8] for name in [*known, *unknown, *others]}
    weights["pool.query"] = made[:1]
    templates = "tower.blocks.*.wqkvs.q_a, language.layers.*.attn.wq_du, x.*.sa_qcontent_proj"
    note = f"layers are left out, because their layout is unknown: {templates}"
    assert left_out(attngeo.score(weights, num_heads=2, nulls=False)) == [note]
    assert left_out(attngeo.score(weights, num_heads=2, nulls=False, stack="encoder")) == []


def test_a_vision_tower_alone_is_not_taken_for_a_decoder(tmp_path: Path) -> None:
    """The keys of its language model are shared between layers, in a layout that the table does not have."""
    tiny("mistral_large4").save_pretrained(tmp_path / "model")
    table = attngeo.score(tmp_path / "model", nulls=False)
    assert set(table.frame["stack"]) == {"vision"}
    note = "layers are left out, because their layout is unknown: language_model.layers.*.attention.wq"
    assert left_out(table) == [note]


def test_layers_that_no_live_model_confirmed_are_named(tmp_path: Path) -> None:
    tiny("granite_speech").save_pretrained(tmp_path)
    [note] = attngeo.score(tmp_path, nulls=False).notes
    assert note.endswith("because no live model of this type confirmed them: encoder.layers.*.attn")
    assert attngeo.score(tmp_path, nulls=False, stack="text").notes == ()
    unproven = attngeo.score(tmp_path, nulls=False, unproven=True)
    assert "encoder" in set(unproven.frame["stack"]) and left_out(unproven) == []


def test_comparisons_and_initialisations_say_what_they_left_out() -> None:
    class Part(torch.nn.Module):
        def __init__(self, *names: str) -> None:
            super().__init__()
            for name in names:
                setattr(self, name, torch.nn.Linear(8, 8, bias=False))

    model = torch.nn.ModuleDict({"layer": Part("q_proj", "k_proj"), "extra": Part("q_a")})
    remark = "layers are left out, because their layout is unknown: extra.q_a"
    before = model["extra"].q_a.weight.clone()
    with pytest.warns(UserWarning, match=remark):
        attngeo.symmetric_init_(model, num_heads=2)
    assert torch.equal(model["extra"].q_a.weight, before)
    assert torch.equal(model["layer"].q_proj.weight, model["layer"].k_proj.weight)
    assert attngeo.compare(model, model, num_heads=2).notes[-1] == f"ModuleDict: {remark}"


# Layers that lack their queries or their keys.


@pytest.mark.parametrize("missing", ["q_proj.weight", "k_proj.weight"])
def test_a_layer_without_its_queries_or_its_keys_is_named(missing: str, tmp_path: Path) -> None:
    tensors = llama_like_tensors()
    del tensors[f"model.layers.1.self_attn.{missing}"]
    saved(tmp_path, LLAMA_CONFIG | {"n_shared_experts": 1}, tensors)  # which says nothing about shared keys
    lacks = f"model.layers.1.self_attn lacks {missing}, which other layers of its stack have"
    for options in ({}, {"stack": "decoder"}):
        with pytest.raises(LayoutError, match=re.escape(lacks)):
            attngeo.score(tmp_path, nulls=False, **options)
    done = subprocess.run([sys.executable, "-m", "attngeo", "score", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2 and lacks in done.stderr


def test_missing_parts_of_latent_attention_are_named(tmp_path: Path) -> None:
    config = transformers.DeepseekV3Config(
        **TINY, num_hidden_layers=3, num_key_value_heads=4, first_k_dense_replace=3, q_lora_rank=8, kv_lora_rank=8,
        qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4)  # fmt: skip
    transformers.DeepseekV3ForCausalLM(config).save_pretrained(tmp_path)
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    layer = "model.layers.1.self_attn"
    for missing in (("q_b_proj.weight",), ("kv_b_proj.weight", "kv_a_proj_with_mqa.weight")):
        kept = {name: tensor for name, tensor in tensors.items() if name not in {f"{layer}.{m}" for m in missing}}
        with pytest.raises(LayoutError, match=f"{layer} lacks {', '.join(missing)}, which"):
            attngeo.score(saved(tmp_path, config, kept), nulls=False)


def test_two_streams_that_share_one_product_are_told_apart() -> None:
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=2, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8))  # fmt: skip
    assert left_out(attngeo.score(model, nulls=False)) == []
    del model.transformer_blocks[1].attn.add_q_proj
    with pytest.raises(LayoutError, match=r"transformer_blocks\.1\.attn\.second lacks add_q_proj\.weight"):
        attngeo.score(model, nulls=False)


# Layers without attention (Jamba, Bamba, Zamba 2, Nemotron-H, LFM2, RecurrentGemma), linear attention (MiniMax,
# Qwen3-Next), encoder-decoders, and cross-attention in some layers (Mllama).
WHOLE = [
    "jamba", "bamba", "zamba2", "nemotron_h", "lfm2", "recurrent_gemma", "falcon_h1", "minimax",
    "qwen3_next", "t5", "bart", "whisper", "mllama", "moshi", "idefics",
]  # fmt: skip


@pytest.mark.parametrize("kind", WHOLE)
def test_nothing_is_missing_from_whole_models(kind: str) -> None:
    whole = open_checkpoint(tiny(kind, "meta"))
    layers = open_layers(whole, unproven=True)
    assert layers.count and not any("lacks" in remark or "keys of another" in remark for remark in layers.left_out)
    # One tensor less is noticed wherever another layer of the stack has it.
    values = {name: torch.empty(info.shape, device="meta") for name, info in whole.tensors.items()}
    for last in {layer.template: layer for layer in layers.unread}.values():
        alone = sum(layer.template == last.template for layer in layers.unread) == 1
        for name in () if alone or len(last.tensors) == 1 else last.tensors:
            less = {other: value for other, value in values.items() if other != name}
            with pytest.raises(LayoutError, match=re.escape(f"{last.path} lacks {name.removeprefix(last.path + '.')}")):
                open_layers(open_checkpoint(less, config=whole.config), unproven=True)


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


# Layers that the model does not run with the weights of the file.


def test_layers_that_read_the_keys_of_an_earlier_one_are_left_out(tmp_path: Path) -> None:
    model = transformers.Gemma4TextModel(transformers.Gemma4TextConfig(**GEMMA4))
    model.save_pretrained(tmp_path)
    note = "layers are left out, because they read the keys of another layer: layers.2.self_attn, layers.3.self_attn"
    assert left_out(attngeo.score(model, nulls=False)) == [note]
    weights = load_file(tmp_path / "model.safetensors")
    # Published checkpoints hold key weights in all layers; transformers ignores those of the layers that share keys.
    for layer in (2, 3):
        for name in ("k_proj", "v_proj", "k_norm"):
            weights[f"layers.{layer}.self_attn.{name}.weight"] = weights[f"layers.0.self_attn.{name}.weight"] * 2
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert [layer.layer for layer in attngeo.attention_layers(tmp_path)] == [0, 1]
    del model.layers[0].self_attn.k_proj  # which is its own
    with pytest.raises(LayoutError, match=r"layers\.0\.self_attn lacks k_proj\.weight"):
        attngeo.score(model, nulls=False)


# Model type → where its checkpoints keep the layers that predict further tokens.
FURTHER = {
    "glm4_moe": "layers.2",  # behind the last layer
    "qwen3_5": "mtp.layers.0",  # with a vision tower
    "granite_docling": "mtp.layers.0",  # sorted before the text model
    "ernie4_5_moe": "model.mtp_block.0",
    "hy_v4": "model.mtp_layers.0",
}


@pytest.mark.parametrize(
    "kind",
    [kind if kind in ("glm4_moe", "qwen3_5") else pytest.param(kind, marks=pytest.mark.slow) for kind in FURTHER],
)
def test_layers_that_predict_further_tokens_are_left_out(kind: str, tmp_path: Path) -> None:
    """transformers does not load them; the layers that it does load are scored as if the others were not there."""
    model = tiny(kind)
    if kind == "glm4_moe":
        model.config.num_nextn_predict_layers = 1
    model.save_pretrained(tmp_path)
    before = attngeo.score(tmp_path, nulls=False)
    with open_layers(tmp_path, stack={"decoder", "text"} & set(before.frame["stack"])) as layers:
        attention = layers.unread[-1].path
    weights = load_file(tmp_path / "model.safetensors")
    block = attention.rpartition(".")[0]
    own = [name for name in weights if name.startswith(f"{attention}.")]
    further = {f"{FURTHER[kind]}{name.removeprefix(block)}": name for name in own}
    patterns = [re.compile(pattern) for pattern in type(model)._keys_to_ignore_on_load_unexpected or ()]
    if kind != "glm4_moe":
        assert further and all(any(pattern.search(name) for pattern in patterns) for name in further)
    save_file(weights | {name: 2 * weights[source] for name, source in further.items()}, tmp_path / "model.safetensors")
    after = attngeo.score(tmp_path, nulls=False)
    assert after.frame.equals(before.frame)
    (note,) = set(after.notes) - set(before.notes)
    assert f"the model does not run them with these weights: {FURTHER[kind]}." in note


def test_a_model_with_nothing_but_further_tokens_is_scored(tmp_path: Path) -> None:
    """It drafts tokens for another one. The layers of a model without a config are all its own too."""
    config = {"model_type": "qwen3", "num_attention_heads": 2, "hidden_size": 8, "num_hidden_layers": 1}
    config |= {"head_dim": 4, "num_key_value_heads": 2}
    made = np.random.default_rng(0).normal(size=(2, 2, 8, 8)).astype(np.float32)
    named = {f"mtp.layers.0.self_attn.{name}_proj.weight": one for name, one in zip("qk", made[0], strict=True)}
    table = attngeo.score(saved(tmp_path, config, named), nulls=False)
    assert table.frame["head"].max() == 1 and left_out(table) == []
    named |= {f"layers.0.self_attn.{name}_proj.weight": one for name, one in zip("qk", made[1], strict=True)}
    assert attngeo.score(named, num_heads=2, nulls=False).frame["stack"].n_unique() == 2
