"""Small checkpoints of several layouts, made on the spot: a folder with a config and a safetensors file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.weights.made_checkpoints import Array, safetensors_bytes, write_files

WIDTH, HEADS, SIZE = 32, 4, 8
Tensors = dict[str, Array]
Draw = Callable[..., Array]


def _bert(draw: Draw, layers: int) -> tuple[dict[str, Any], Tensors]:
    tensors: Tensors = {}
    for i in range(layers):
        for name in ("query", "key", "value"):
            tensors[f"bert.encoder.layer.{i}.attention.self.{name}.weight"] = draw(WIDTH, WIDTH)
        tensors[f"bert.encoder.layer.{i}.output.LayerNorm.weight"] = 1 + 0.1 * draw(WIDTH)
    tensors["bert.embeddings.LayerNorm.weight"] = 1 + 0.1 * draw(WIDTH)
    return {"model_type": "bert", "hidden_size": WIDTH, "num_attention_heads": HEADS}, tensors


def _gpt2(draw: Draw, layers: int) -> tuple[dict[str, Any], Tensors]:
    tensors = {f"transformer.h.{i}.attn.c_attn.weight": draw(WIDTH, 3 * WIDTH) for i in range(layers)}
    tensors |= {f"transformer.h.{i}.ln_1.weight": 1 + 0.1 * draw(WIDTH) for i in range(layers)}
    return {"model_type": "gpt2", "n_embd": WIDTH, "n_head": HEADS, "n_layer": layers}, tensors


def _neox(draw: Draw, layers: int) -> tuple[dict[str, Any], Tensors]:
    name = "gpt_neox.layers.{}.attention.query_key_value.weight"
    tensors = {name.format(i): draw(3 * WIDTH, WIDTH) for i in range(layers)}
    return {"model_type": "gpt_neox", "hidden_size": WIDTH, "num_attention_heads": HEADS, "rotary_pct": 0.5}, tensors


def _grouped(draw: Draw, layers: int, model_type: str) -> tuple[dict[str, Any], Tensors]:
    tensors: Tensors = {}
    for i in range(layers):
        for name, rows in (("q", WIDTH), ("k", WIDTH // 2), ("v", WIDTH // 2)):
            tensors[f"model.layers.{i}.self_attn.{name}_proj.weight"] = draw(rows, WIDTH)
        tensors[f"model.layers.{i}.input_layernorm.weight"] = 1 + 0.1 * draw(WIDTH)
        if model_type == "qwen3":
            for name in ("q", "k"):
                tensors[f"model.layers.{i}.self_attn.{name}_norm.weight"] = 1 + 0.1 * draw(SIZE)
    config = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": HEADS // 2, "head_dim": SIZE}
    return {"model_type": model_type, **config}, tensors


def _t5(draw: Draw, layers: int) -> tuple[dict[str, Any], Tensors]:
    tensors: Tensors = {}
    for i in range(layers):
        for stack, block, kind in (
            ("encoder", 0, "SelfAttention"),
            ("decoder", 0, "SelfAttention"),
            ("decoder", 1, "EncDecAttention"),
        ):
            for name in "qkv":
                tensors[f"{stack}.block.{i}.layer.{block}.{kind}.{name}.weight"] = draw(WIDTH, WIDTH)
    return {"model_type": "t5", "d_model": WIDTH, "d_kv": SIZE, "num_heads": HEADS, "num_layers": layers}, tensors


def _separate(draw: Draw, layers: int, model_type: str, name: str, parts: str) -> tuple[dict[str, Any], Tensors]:
    """A model whose queries, keys and values are tensors of their own."""
    tensors = {name.format(i, part): draw(WIDTH, WIDTH) for i in range(layers) for part in parts.split()}
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": layers}
    return {"model_type": model_type, **sizes}, tensors


def _fused(draw: Draw, layers: int, model_type: str, name: str) -> tuple[dict[str, Any], Tensors]:
    """A model with one tensor for queries, keys and values."""
    tensors = {name.format(i): draw(3 * WIDTH, WIDTH) for i in range(layers)}
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": layers, "n_head": HEADS}
    return {"model_type": model_type, **sizes}, tensors


LAYOUTS: Mapping[str, Callable[[Draw, int], tuple[dict[str, Any], Tensors]]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "gpt_neox": _neox,
    "llama": lambda draw, layers: _grouped(draw, layers, "llama"),
    "qwen3": lambda draw, layers: _grouped(draw, layers, "qwen3"),
    "t5": _t5,
}
_DISTILBERT = "distilbert.transformer.layer.{}.attention.{}_lin.weight"
_OPT = "model.decoder.layers.{}.self_attn.{}_proj.weight"
_VIT = "vit.encoder.layer.{}.attention.attention.{}.weight"
_BLOOM = "transformer.h.{}.self_attention.query_key_value.weight"
_PHI3 = "model.layers.{}.self_attn.qkv_proj.weight"
MORE_LAYOUTS: Mapping[str, Callable[[Draw, int], tuple[dict[str, Any], Tensors]]] = {
    **LAYOUTS,
    "mistral": lambda draw, layers: _grouped(draw, layers, "mistral"),
    "distilbert": lambda draw, layers: _separate(draw, layers, "distilbert", _DISTILBERT, "q k v"),
    "opt": lambda draw, layers: _separate(draw, layers, "opt", _OPT, "q k v"),
    "vit": lambda draw, layers: _separate(draw, layers, "vit", _VIT, "query key value"),
    "bloom": lambda draw, layers: _fused(draw, layers, "bloom", _BLOOM),
    "phi3": lambda draw, layers: _fused(draw, layers, "phi3", _PHI3),
}


def model_files(layout: str, seed: int = 0, layers: int = 2) -> dict[str, bytes | Mapping[str, Any]]:
    """Return the files of a model with random weights."""
    random = np.random.default_rng(seed)
    config, tensors = MORE_LAYOUTS[layout](lambda *shape: random.normal(0, 0.2, shape).astype(np.float32), layers)
    return {"config.json": config, "model.safetensors": safetensors_bytes(tensors)}


def make_models(folder: Path, count: int, layers: int = 2, layouts: Sequence[str] = tuple(LAYOUTS)) -> list[Path]:
    """Write `count` models of the given layouts in turn, each with weights of its own."""
    named = [(i, layouts[i % len(layouts)]) for i in range(count)]
    return [write_files(folder / f"{i:03}-{layout}", model_files(layout, i, layers)) for i, layout in named]
