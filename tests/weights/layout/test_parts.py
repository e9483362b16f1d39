"""Models made of parts: the facts about a part are those of its own model type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import attngeo
from attngeo.errors import UnprovenError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = {"vocab_size": 60, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
GROUPED = {**TEXT, "num_key_value_heads": 2}

# Language models unlike the LLaMA with which LLaVA was proved.
LANGUAGE_MODELS = {
    "gemma3_text": {**GROUPED, "head_dim": 12},  # norms that store gain − 1
    "cohere": {**GROUPED, "use_qk_norm": True},  # LayerNorms, neighbours rotate
    "phi": {**GROUPED, "partial_rotary_factor": 0.5},
    "gpt_neox": {**TEXT, "rotary_pct": 0.5},  # fused storage
}


def llava(text: str) -> Any:
    """Return a LLaVA with a language model of this type, with gains that are not 1."""
    parts = {
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 32, "num_hidden_layers": 1,
                          "num_attention_heads": 4, "intermediate_size": 40, "image_size": 28, "patch_size": 14},
        "text_config": {"model_type": text, **LANGUAGE_MODELS[text]},
    }  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlavaModel(transformers.LlavaConfig(**parts, image_token_index=3))
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


@pytest.mark.parametrize("text", LANGUAGE_MODELS)
def test_a_language_model_within_another_is_read_as_by_itself(text: str) -> None:
    model = llava(text)
    within = list(attngeo.attention_layers(model, stack="text", norms=True))
    alone = list(attngeo.attention_layers(model.language_model, norms=True))
    assert len(within) == len(alone) == 2
    for one, other in zip(within, alone, strict=True):
        assert np.array_equal(one.query, other.query) and np.array_equal(one.key, other.key)
        assert (one.rotary, one.rotary_known) == (other.rotary, True)
        assert one.norm is not None and other.norm is not None
        assert one.norm.centred == other.norm.centred and np.array_equal(one.norm.gain, other.norm.gain)


def test_a_part_of_a_type_that_was_never_examined_is_not_scored_unasked(tmp_path: Path) -> None:
    parts = {"text_config": {"model_type": "mystery", "num_attention_heads": 2, "hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava", **parts}))
    weights = {f"language_model.layers.0.self_attn.{name}_proj.weight": np.eye(8, dtype=np.float32) for name in "qk"}
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UnprovenError, match="model type llava with a part of type mystery was never checked"):
        list(attngeo.attention_layers(tmp_path))
    (layer,) = attngeo.attention_layers(tmp_path, unproven=True)
    assert not layer.rotary_known
