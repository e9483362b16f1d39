"""Pruned layers, whose queries keep their numbers and read the key heads that are left."""

from __future__ import annotations

import numpy as np
import pytest

import attngeo
from attngeo.weights.sources.memory import MemoryCheckpoint

HEADS, KEYS, SIZE, WIDTH = 9, 3, 4, 16


@pytest.mark.parametrize(
    ("kept", "keys"),
    [
        ([3, 4, 7, 8], 2),  # the first one is gone: the second becomes the first
        ([1, 2, 7, 8], 2),  # the middle one is gone
        ([4, 7], 2),  # one of each
    ],
)
def test_queries_read_the_keys_of_their_group(kept, keys):
    """The key of a query head is found in the full model, whatever groups before it are gone."""
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(count, SIZE, WIDTH)).astype(np.float32) for count in (HEADS, KEYS))
    groups = [head // (HEADS // KEYS) for head in kept]
    described = {"heads": HEADS, "key_heads": KEYS, "head_size": SIZE, "kept": {"0": kept}}
    config = {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
        "head_dim": SIZE,
        "attngeo_pruned": {"stacks": {"decoder": described}},
    }
    tensors = {
        "model.layers.0.self_attn.q_proj.weight": query[kept].reshape(-1, WIDTH),
        "model.layers.0.self_attn.k_proj.weight": key[sorted(set(groups))].reshape(-1, WIDTH),
    }
    (layer,) = attngeo.attention_layers(MemoryCheckpoint("made", config, tensors))
    assert list(layer.head_numbers) == kept and layer.groups == keys
    for place, (head, group) in enumerate(zip(kept, groups, strict=True)):
        np.testing.assert_array_equal(layer.query[place], query[head].T)
        np.testing.assert_array_equal(layer.key[place // layer.group_size], key[group].T)
