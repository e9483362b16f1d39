"""Small checkpoints of several layouts, made on the spot: a folder with a config and a safetensors file each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.weights.made_checkpoints import safetensors_bytes, write_files

WIDTH, HEADS, SIZE = 32, 4, 8
SQUARE, FUSED, HALF, GAIN = (WIDTH, WIDTH), (3 * WIDTH, WIDTH), (WIDTH // 2, WIDTH), (WIDTH,)
Shapes = dict[str, tuple[int, ...]]


def each(template: str, names: str, shape: tuple[int, ...] = SQUARE) -> Shapes:
    """Return the shapes of tensors that differ in one part of their names, written as *."""
    return {template.replace("*", name): shape for name in names.split()}


_SIZES = {"hidden_size": WIDTH, "num_attention_heads": HEADS}
_GROUPED_SIZES = _SIZES | {"num_key_value_heads": HEADS // 2, "head_dim": SIZE}
_GROUPED = (
    each("model.layers.{}.self_attn.*_proj.weight", "q")
    | each("model.layers.{}.self_attn.*_proj.weight", "k v", HALF)
    | each("model.layers.{}.*.weight", "input_layernorm", GAIN)
)
# Model type → its config and the shapes of its tensors, {}: the number of the layer.
LAYOUTS: Mapping[str, tuple[dict[str, Any], Shapes]] = {
    "bert": (
        _SIZES,
        each("bert.encoder.layer.{}.attention.self.*.weight", "query key value")
        | each("bert.*.LayerNorm.weight", "encoder.layer.{}.output embeddings", GAIN),
    ),
    "gpt2": (
        {"n_embd": WIDTH, "n_head": HEADS},
        {"transformer.h.{}.attn.c_attn.weight": FUSED[::-1], "transformer.h.{}.ln_1.weight": GAIN},
    ),
    "gpt_neox": (_SIZES | {"rotary_pct": 0.5}, {"gpt_neox.layers.{}.attention.query_key_value.weight": FUSED}),
    "llama": (_GROUPED_SIZES, _GROUPED),
    "qwen3": (_GROUPED_SIZES, _GROUPED | each("model.layers.{}.self_attn.*_norm.weight", "q k", (SIZE,))),
    "t5": (
        {"d_model": WIDTH, "d_kv": SIZE, "num_heads": HEADS},
        each("encoder.block.{}.layer.0.SelfAttention.*.weight", "q k v")
        | each("decoder.block.{}.layer.0.SelfAttention.*.weight", "q k v")
        | each("decoder.block.{}.layer.1.EncDecAttention.*.weight", "q k v"),
    ),
    "mistral": (_GROUPED_SIZES, _GROUPED),
    "distilbert": (_SIZES, each("distilbert.transformer.layer.{}.attention.*_lin.weight", "q k v")),
    "opt": (_SIZES, each("model.decoder.layers.{}.self_attn.*_proj.weight", "q k v")),
    "vit": (_SIZES, each("vit.encoder.layer.{}.attention.attention.*.weight", "query key value")),
    "bloom": (_SIZES | {"n_head": HEADS}, {"transformer.h.{}.self_attention.query_key_value.weight": FUSED}),
    "phi3": (_SIZES, {"model.layers.{}.self_attn.qkv_proj.weight": FUSED}),
}


def model_files(layout: str, seed: int = 0, layers: int = 2) -> dict[str, bytes | Mapping[str, Any]]:
    """Return the files of a model with random weights."""
    random = np.random.default_rng(seed)
    sizes, shapes = LAYOUTS[layout]
    tensors = {}
    for layer in range(layers):
        for name, shape in shapes.items():
            values = random.normal(0, 0.2, shape).astype(np.float32)
            tensors[name.format(layer)] = 1 + 0.1 * values if len(shape) == 1 else values
    depth = dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), layers)
    return {"config.json": {"model_type": layout, **sizes, **depth}, "model.safetensors": safetensors_bytes(tensors)}


def make_models(folder: Path, count: int, layers: int = 2) -> list[Path]:
    """Write `count` models of all layouts in turn, each with weights of its own."""
    names = list(LAYOUTS)
    layouts = [names[i % len(names)] for i in range(count)]
    return [write_files(folder / f"{i:03}-{name}", model_files(name, i, layers)) for i, name in enumerate(layouts)]
