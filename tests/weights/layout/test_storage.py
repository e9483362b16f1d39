"""Each storage class: NumPy and torch agree, views write through, only needed rows are read, bad shapes are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from attngeo import attention_layers
from attngeo.errors import LayoutError
from attngeo.weights.layout.config_scope import Scope
from attngeo.weights.layout.families import Family
from attngeo.weights.layout.storage import (
    Blocks,
    CodeGen,
    DeclaredHeads,
    Heads,
    KeyValue,
    Latent,
    PerHead,
    Separate,
    Storage,
)
from attngeo.weights.sources.open import open_checkpoint

D, R = 12, 3
FULL, GROUPED = Heads(4, 4, R), Heads(4, 2, R)
CASES: dict[str, tuple[Storage, Heads, dict[str, tuple[int, ...]]]] = {
    "separate": (Separate("q", "k"), GROUPED, {"q": (12, D), "k": (6, D)}),
    "separate, gated": (Separate("q", "k"), Heads(4, 2, R, gated=True), {"q": (24, D), "k": (6, D)}),
    "separate, 1×1 convolution": (Separate("q", "k"), FULL, {"q": (12, D, 1, 1), "k": (12, D, 1, 1)}),
    "separate, transposed": (Separate("q", "k", transposed=True), FULL, {"q": (D, 4, R), "k": (D, 4, R)}),
    "key-value": (KeyValue("q", "kv"), GROUPED, {"q": (12, D), "kv": (12, D)}),
    "blocks": (Blocks("qkv", "qkv"), GROUPED, {"qkv": (24, D)}),
    "blocks, transposed": (Blocks("qkv", "qkv", transposed=True), FULL, {"qkv": (D, 36)}),
    "per head": (PerHead("qkv", "qkv"), GROUPED, {"qkv": (24, D)}),
    "CodeGen": (CodeGen("qkv", "qkv"), FULL, {"qkv": (36, D)}),
}


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("case", CASES)
def test_numpy_and_torch_give_the_same_heads(case: str) -> None:
    storage, heads, shapes = CASES[case]
    tensors = random_tensors(shapes)
    query, key = storage.factors(tensors, heads)
    assert query.shape == (heads.queries, D, R) and key.shape == (heads.keys, D, R)
    live = storage.factors({name: torch.from_numpy(array) for name, array in tensors.items()}, heads)
    for ours, theirs in zip((query, key), live, strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())
    declared = DeclaredHeads(
        "n", 4, Scope(None, {"num_key_value_heads": heads.keys, "head_dim": R}, {}), False, Family(gated=True)
    )
    assert storage.count_heads(shapes, declared) == heads


@pytest.mark.parametrize("case", CASES)
def test_views_write_into_the_tensors_and_overlap_nowhere(case: str) -> None:
    storage, heads, shapes = CASES[case]
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    query, key = storage.views(tensors, heads)
    assert query.shape[-3:] == (heads.group, R, D) and key.shape[-2:] == (R, D)
    query += 1
    key += 10
    written = torch.cat([tensor.flatten() for tensor in tensors.values()])
    assert int((written == 1).sum()) == heads.queries * R * D
    assert int((written == 10).sum()) == heads.keys * R * D
    assert set(written.unique().tolist()) <= {0, 1, 10}


@pytest.mark.parametrize("case", CASES)
def test_the_rows_requested_are_enough(case: str) -> None:
    storage, heads, shapes = CASES[case]
    tensors = random_tensors(shapes)
    read = {
        request.name: tensors[request.name]
        if request.rows is None
        else np.concatenate([tensors[request.name][start:stop] for start, stop in request.rows])
        for request in storage.requests(heads)
    }
    for part, whole in zip(storage.factors(read, heads), storage.factors(tensors, heads), strict=True):
        np.testing.assert_array_equal(part, whole)


def test_rows_of_values_behind_the_keys_are_not_requested() -> None:
    for case, last in (("key-value", 6), ("blocks", 18)):
        storage, heads, _ = CASES[case]
        assert storage.requests(heads)[-1].rows == ((0, last),)


def test_without_a_head_count_the_layer_is_one_head_or_an_error() -> None:
    assert Separate("q", "k").single_head({"q": (6, D), "k": (6, D)}) == Heads(1, 1, 6)
    assert Blocks("qkv", "qkv").single_head({"qkv": (18, D)}) == Heads(1, 1, 6)
    refused: list[tuple[Storage, dict[str, tuple[int, ...]]]] = [
        (Separate("q", "k"), {"q": (6, D), "k": (3, D)}),
        (Blocks("qkv", "qkv"), {"qkv": (16, D)}),
        (KeyValue("q", "kv"), {"q": (6, D), "kv": (12, D)}),
        (PerHead("qkv", "qkv"), {"qkv": (18, D)}),
        (CodeGen("qkv", "qkv"), {"qkv": (18, D)}),
    ]
    for storage, shapes in refused:
        with pytest.raises(LayoutError, match="num_heads"):
            storage.single_head(shapes)


LATENT: dict[str, tuple[int, ...]] = {"q": (20, D), "up": (24, 6), "down": (8, D), "gain": (6,)}  # 4 heads of 3 + 2


def latent_heads(shapes: dict[str, tuple[int, ...]], config: dict[str, Any]) -> Heads | None:
    storage = Latent("q", "up", {"key_down": "down", "key_gain": "gain"})
    return storage.count_heads(shapes, DeclaredHeads("n", 4, Scope(None, config, {}), False))


def test_latent_heads_are_counted_and_products_have_no_views() -> None:
    sizes = {"qk_nope_head_dim": 3, "qk_rope_head_dim": 2}
    heads = latent_heads(LATENT, sizes)
    assert heads == Heads(4, 4, 5)
    storage = Latent("q", "up", {"key_down": "down", "key_gain": "gain"})
    tensors = random_tensors(LATENT)
    query, key = storage.factors(tensors, heads)
    assert query.shape == key.shape == (4, D, 5)
    np.testing.assert_array_equal(key[0][:, 3:], tensors["down"][6:].T)  # the rotary key, the same for every head
    np.testing.assert_allclose(key[1][:, :3].T, tensors["up"][6:9] * tensors["gain"] @ tensors["down"][:6], atol=1e-6)
    with pytest.raises(LayoutError, match="latent attention; its queries and keys are products"):
        storage.views(tensors, heads)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gain": (5,)}, r"gain: shape \[5\], expected \[6\]"),
        ({"q": (18, D)}, r"q \[18, 12\] and up \[24, 6\]: not 4 latent heads of size 5"),
        ({"down": (4, D)}, "not 4 latent heads of size 5"),
        ({"down": (8,)}, r"down: shape \[8\], expected a matrix \[out, in\]"),
        ({"up": (0, 6)}, r"up: shape \[0, 6\], expected a matrix \[out, in\]"),
    ],
)
def test_latent_shapes_that_do_not_fit_are_named(changed: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        latent_heads(LATENT | changed, {"qk_nope_head_dim": 3, "qk_rope_head_dim": 2})


def test_latent_attention_needs_its_head_sizes() -> None:
    with pytest.raises(LayoutError, match="qk_nope_head_dim and qk_rope_head_dim"):
        latent_heads(LATENT, {"qk_nope_head_dim": 3})
    with pytest.raises(LayoutError, match="needs a config with its head sizes"):
        Latent("q", "up").count_heads(LATENT, DeclaredHeads("num_heads", 4, None, False))


@pytest.mark.parametrize("shape", [(), (8,), (0, 8), (8, 0), (8, 8, 3)])
@pytest.mark.parametrize("config", [None, {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}])
def test_a_tensor_that_is_no_matrix_is_named(shape: tuple[int, ...], config: dict[str, Any] | None) -> None:
    weights = {"layers.0.q_proj.weight": np.zeros(shape, np.float32), "layers.0.k_proj.weight": np.eye(8)}
    with pytest.raises(LayoutError, match=r"q_proj\.weight: shape .*, expected a matrix \[out, in\]"):
        list(attention_layers(open_checkpoint(weights, config=config), unproven=True))


@pytest.mark.parametrize("heads", [{"n_head": 3}, {"n_head": 4, "num_key_value_heads": 2}])
def test_codegen_needs_a_multiple_of_four_heads(heads: dict[str, int]) -> None:
    rows = 24 if "num_key_value_heads" in heads else 27
    weights = {"h.0.attn.qkv_proj.weight": np.zeros((rows, 8), np.float32)}
    config = {"model_type": "codegen", **heads}
    with pytest.raises(LayoutError, match="expected equally many, a multiple of 4"):
        list(attention_layers(open_checkpoint(weights, config=config), unproven=True))
