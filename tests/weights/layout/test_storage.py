"""Every kind of storage: the heads that were stored are read, and live weights are written; bad shapes are named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import attngeo
from attngeo.arrays import Floats
from attngeo.errors import LayoutError
from attngeo.weights.sources.open import open_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:.*scores under rotary embedding are left out")

H, G, R, D = 4, 2, 4, 12
Tensors = dict[str, Any]


def heads(count: int, seed: int) -> Floats:
    """Return random rows of heads [count, r, d]."""
    return np.random.default_rng(seed).standard_normal((count, R, D)).astype(np.float32)


def rows(*parts: Any) -> Any:
    """Return parts [..., r, d], one below the other, as one matrix."""
    return np.concatenate([part.reshape(-1, D) for part in parts])


def per_head(query: Any, key: Any, value: Any) -> Any:
    """Return rows [G, (H/G queries, key, value), r]."""
    grouped = query.reshape(len(key), -1, R, D)
    return rows(np.concatenate([grouped, key[:, None], value[:, None]], 1))


def codegen(query: Any, key: Any, value: Any) -> Any:
    """Return rows [4, (queries, values, keys), H/4, r]."""
    return rows(*(part[i : i + 1] for i in range(4) for part in (query, value, key)))


def separate(query: Any, key: Any, value: Any, names: str = "q_proj k_proj v_proj") -> Tensors:
    return {f"{name}.weight": rows(part) for name, part in zip(names.split(), (query, key, value), strict=True)}


# Name → model type, path of the layer, number of key heads, and what stores the heads.
KINDS: dict[str, tuple[str, str, int, Any]] = {
    "separate": ("llama", "layers.0.self_attn", G, separate),
    "separate, gated": (
        "qwen3_next", "layers.0.self_attn", G,
        lambda q, k, v: separate(np.stack([q, q + 5], 1), k, v),
    ),
    "separate, 1×1 convolution": (
        "mobilevit", "layer.0.attention.attention", H,
        lambda q, k, v: {n: w[..., None, None] for n, w in separate(q, k, v, "query key value").items()},
    ),
    "separate, transposed": (
        "xlnet", "layer.0.rel_attn", H,
        lambda q, k, v: {n: rows(w).T.reshape(D, H, R) for n, w in zip("qkv", (q, k, v), strict=True)},
    ),
    "key-value": (
        "mystery", "layers.0.attn", G,
        lambda q, k, v: {"q_proj.weight": rows(q), "kv_proj.weight": rows(k, v)},
    ),
    "blocks": ("mystery", "layers.0.attn", G, lambda *parts: {"qkv_proj.weight": rows(*parts)}),
    "blocks, transposed": ("gpt2", "h.0.attn", H, lambda *parts: {"c_attn.weight": rows(*parts).T}),
    "per head": ("gpt_neox", "layers.0.attention", H, lambda *parts: {"query_key_value.weight": per_head(*parts)}),
    "per head, grouped": ("falcon", "h.0.self_attention", G, lambda *p: {"query_key_value.weight": per_head(*p)}),
    "codegen": ("codegen", "h.0.attn", H, lambda *parts: {"qkv_proj.weight": codegen(*parts)}),
}  # fmt: skip


def stored(kind: str) -> tuple[Tensors, dict[str, Any], Floats, Floats]:
    """Return the tensors of one layer, its config, and the heads [H, r, d] and [G, r, d] that they hold."""
    model_type, path, groups, store = KINDS[kind]
    query, key, value = heads(H, 0), heads(groups, 1), heads(groups, 2)
    tensors = {f"{path}.{leaf}": np.ascontiguousarray(part) for leaf, part in store(query, key, value).items()}
    config = {"model_type": model_type, "num_attention_heads": H, "num_key_value_heads": groups, "head_dim": R}
    return tensors, config | {"num_kv_heads": groups, "new_decoder_architecture": True}, query, key


@pytest.mark.parametrize("kind", KINDS)
def test_the_heads_that_were_stored_are_read(kind: str) -> None:
    tensors, config, query, key = stored(kind)
    (layer,) = attngeo.attention_layers(open_checkpoint(tensors, config=config), unproven=True)
    np.testing.assert_array_equal(layer.query.swapaxes(1, 2), query)
    np.testing.assert_array_equal(layer.key.swapaxes(1, 2), key)


class Holder(torch.nn.Module):
    """A model with these parameters and this config."""

    def __init__(self, tensors: Tensors, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = SimpleNamespace(to_dict=lambda: config)
        for name, value in tensors.items():
            *path, leaf = name.split(".")
            module: torch.nn.Module = self
            for word in path:
                if word not in module._modules:
                    module.add_module(word, torch.nn.Module())
                module = module.get_submodule(word)
            module.register_parameter(leaf, torch.nn.Parameter(torch.from_numpy(value.copy())))


@pytest.mark.parametrize("kind", KINDS)
def test_queries_are_written_and_nothing_else(kind: str) -> None:
    tensors, config, _, key = stored(kind)
    model = Holder(tensors, config)
    attngeo.symmetric_init_(model, scale="kept", unproven=True)
    after = {name: value.numpy() for name, value in model.state_dict().items()}
    (layer,) = attngeo.attention_layers(open_checkpoint(after, config=config), unproven=True)
    np.testing.assert_array_equal(layer.query.swapaxes(1, 2), key.repeat(H // len(key), 0))
    changed = sum(int((after[name] != value).sum()) for name, value in tensors.items())
    assert changed <= H * R * D  # the queries alone: keys, values and gates are as they were
    np.testing.assert_array_equal(layer.key.swapaxes(1, 2), key)


LATENT = {"q_proj": (20, D), "kv_b_proj": (24, 6), "kv_a_proj_with_mqa": (8, D), "kv_a_layernorm": (6,)}  # r = 3 + 2
SIZES = {"model_type": "deepseek_v3", "num_attention_heads": 4, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2}


def latent(**shapes: tuple[int, ...]) -> Tensors:
    draw = np.random.default_rng(0)
    made = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in (LATENT | shapes).items()}
    return {f"layers.0.self_attn.{name}.weight": value for name, value in made.items()}


def test_latent_heads_are_products_of_their_projections() -> None:
    (layer,) = attngeo.attention_layers(open_checkpoint(latent(), config=SIZES))
    query, up, down, gain = latent().values()
    assert layer.query.shape == layer.key.shape == (4, D, 5)
    np.testing.assert_array_equal(layer.query.swapaxes(1, 2).reshape(20, D), query)
    np.testing.assert_array_equal(layer.key[0][:, 3:], down[6:].T)  # the rotary key, the same for every head
    np.testing.assert_allclose(layer.key[1][:, :3].T, up[6:9] * gain @ down[:6], atol=1e-6)


def own(**shapes: tuple[int, ...]) -> Tensors:
    """Return the tensors of a layer without a config."""
    return {f"layers.0.attn.{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}


BAD: list[tuple[Tensors, dict[str, Any] | None, str]] = [
    (own(q_proj=(6, D), k_proj=(3, D)), None, r"has 6 rows and .* has 3; without a head count \(num_heads"),
    (own(qkv=(16, D)), None, "16 rows are not three equal blocks; give the head count"),
    (latent(q_proj=(18, D)), SIZES, r"\[18, 12\] and .* \[24, 6\]: not 4 latent heads of size 3"),
    (latent(), None, "latent attention needs a config with its head sizes"),
    (own(q_proj=(8,), k_proj=(8, 8)), None, r"q_proj\.weight: shape .*, expected a matrix \[out, in\]"),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_tensors_that_do_not_hold_the_heads_are_named(case: int) -> None:
    tensors, config, message = BAD[case]
    with pytest.raises(LayoutError, match=message):
        list(attngeo.attention_layers(open_checkpoint(tensors, config=config), unproven=True))
