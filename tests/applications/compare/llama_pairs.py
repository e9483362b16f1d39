"""Small LLaMA-shaped state dicts with a config, and copies of them: fine-tuned, merged, permuted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

LAYERS, HEADS, GROUPS, WIDTH, SIZE, VOCABULARY = 3, 6, 3, 48, 8, 300
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": SIZE,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
}
Tensors = dict[str, np.ndarray]


def random_model(seed: int, width: int = WIDTH, layers: int = LAYERS) -> Tensors:
    """Return random queries, keys, norms and token embeddings."""
    rng = np.random.default_rng(seed)
    tensors = {"model.embed_tokens.weight": rng.standard_normal((VOCABULARY, width), dtype=np.float32)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q_proj", HEADS * SIZE), ("k_proj", GROUPS * SIZE)):
            tensors[f"{prefix}self_attn.{name}.weight"] = rng.standard_normal((rows, width), dtype=np.float32)
        tensors[f"{prefix}input_layernorm.weight"] = rng.normal(1, 0.3, width).astype(np.float32)
    return tensors


def tuned(tensors: Tensors, size: float, seed: int = 1) -> Tensors:
    """Return a copy with noise of `size` times the norm of each tensor added."""
    rng = np.random.default_rng(seed)
    noise = {name: rng.standard_normal(value.shape, dtype=np.float32) for name, value in tensors.items()}
    return {
        name: value + np.float32(size * np.linalg.norm(value) / np.linalg.norm(noise[name])) * noise[name]
        for name, value in tensors.items()
    }


def permuted(tensors: Tensors, seed: int = 2, flips: bool = False) -> Tensors:
    """Return the same model with its hidden dimensions in another order, and with random signs if `flips`."""
    rng = np.random.default_rng(seed)
    width = tensors["model.embed_tokens.weight"].shape[1]
    order, signs = rng.permutation(width), rng.choice([-1, 1], width) if flips else np.ones(width)
    return {
        name: (value[..., order] * (signs if value.ndim == 2 else 1)).astype(np.float32)
        for name, value in tensors.items()
    }


def dense_heads(query: np.ndarray, key: np.ndarray, size: int) -> np.ndarray:
    """Return the forms [heads, d, d] of all heads in float64; query [heads·size, d], key [groups·size, d]."""
    query, key = (np.asarray(side, np.float64).reshape(-1, size, side.shape[1]) for side in (query, key))
    return query.mT @ np.repeat(key, len(query) // len(key), axis=0)


def save_model(folder: Path, tensors: Tensors, **config: object) -> Path:
    """Write a checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    layers = sum("q_proj" in name for name in tensors)
    width = tensors["model.embed_tokens.weight"].shape[1]
    declared = CONFIG | {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "vocab_size": len(tensors["model.embed_tokens.weight"]),
    }
    (folder / "config.json").write_text(json.dumps(declared | config))
    # safetensors writes the memory of an array as it lies, so a transposed one would be scrambled.
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, folder / "model.safetensors")
    return folder
