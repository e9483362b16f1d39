"""The recipe of CONTRIBUTING.md for a new checkpoint layout, followed for a made-up fused layout.

A toy model stores one tensor `vkq.weight` with rows [values (G·r) | keys (G·r) | queries (H·r)]. Adding it takes one
storage class and one row of the table; scoring, live models and initialisations then know it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

import attngeo
from attngeo import attention_layers
from attngeo.arrays import Array
from attngeo.weights.layout import find
from attngeo.weights.layout.storage import Fused, Heads
from attngeo.weights.layout.table import TABLE, Layout
from attngeo.weights.sources.checkpoint import ReadRequest
from attngeo.weights.sources.open import open_checkpoint

WIDTH, HEADS, KEYS, SIZE = 24, 6, 2, 5  # the head size is not d/H
CONFIG: dict[str, Any] = {"model_type": "toy", "num_attention_heads": HEADS, "num_key_value_heads": KEYS}


# Step 1. A live model of the family: what its own products of queries and keys are.
class ToyAttention(nn.Module):
    """Grouped-query attention with one tensor, rows [values | keys | queries]."""

    def __init__(self) -> None:
        super().__init__()
        self.vkq = nn.Linear(WIDTH, (HEADS + 2 * KEYS) * SIZE, bias=False)

    def products(self, x: Tensor) -> Tensor:
        """x [N, d] → q kᵀ [H, N, N], as the model computes it."""
        _, key, query = self.vkq(x).split([KEYS * SIZE, KEYS * SIZE, HEADS * SIZE], dim=-1)
        query = query.view(len(x), HEADS, SIZE).transpose(0, 1)  # [H, N, r]
        key = key.view(len(x), KEYS, SIZE).transpose(0, 1)  # [G, N, r]
        return query @ key.repeat_interleave(HEADS // KEYS, 0).mT


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.ModuleDict({"attn": ToyAttention()}) for _ in range(2))


# Step 2. The storage class: which rows belong to which head. `Fused` settles the head counts, H + 2G heads of one size.
class ValuesFirst(Fused):
    """Rows [values (G·r) | keys (G·r) | queries (H·r)]."""

    def requests(self, heads: Heads) -> list[ReadRequest]:
        values = heads.keys * heads.size  # not read
        return [ReadRequest(self.query, ((values, values + (heads.keys + heads.queries) * heads.size),))]

    def split(self, rows: Array, heads: Heads) -> tuple[Array, Array]:
        queries = heads.queries * heads.size  # counted from the end: `rows` may start with the values or without them
        keys = heads.keys * heads.size
        query = rows[-queries:].reshape(heads.keys, heads.group, heads.size, -1)  # [G, m, r, d]
        return query, rows[-queries - keys : -queries].reshape(heads.keys, heads.size, -1)


# Step 3. The row of the table. `find` is the module that looks rows up.
@pytest.fixture(autouse=True)
def table_with_the_toy_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Layout("vkq.weight", "vkq.weight", ValuesFirst)
    monkeypatch.setattr(find, "TABLE", (row, *TABLE))


# Step 4. The check: x M_h xᵀ must be the live model's own products, and an exchange of heads must be noticed.
def test_extracted_heads_reproduce_the_live_products() -> None:
    model = ToyModel()
    x = torch.randn(7, WIDTH)
    checkpoint = open_checkpoint(model.state_dict(), config=CONFIG)
    extracted = list(attention_layers(checkpoint, unproven=True))
    assert [(layer.stack, layer.layer) for layer in extracted] == [("encoder", 0), ("encoder", 1)]
    for layer in extracted:
        assert layer.query.shape == (HEADS, WIDTH, SIZE) and layer.key.shape == (KEYS, WIDTH, SIZE)
        live = model.layers[layer.layer]["attn"].products(x).detach().numpy()  # [H, N, N]
        key = np.repeat(layer.key, layer.group_size, 0)  # [H, d, r]
        ours = x.numpy() @ layer.query @ (x.numpy() @ key).swapaxes(1, 2)  # [H, N, N]
        np.testing.assert_allclose(ours, live, atol=1e-5)
        exchanged = x.numpy() @ layer.query[::-1] @ (x.numpy() @ key).swapaxes(1, 2)
        assert np.abs(exchanged - live).max() > 0.1


# Step 5. The same class serves live models: an initialisation writes through its views.
def test_the_symmetric_initialisation_writes_the_queries_and_nothing_else() -> None:
    model = ToyModel()
    before = model.layers[1]["attn"].vkq.weight.detach().clone()
    model.config = _Config()
    result = attngeo.symmetric_init_(model, scale="kept", unproven=True)
    assert [layer.tensors for layer in result.layers] == [(f"layers.{i}.attn.vkq.weight",) for i in range(2)]
    after = model.layers[1]["attn"].vkq.weight.detach()
    queries = HEADS * SIZE
    assert torch.equal(after[:-queries], before[:-queries])  # values and keys
    keys = before[KEYS * SIZE : 2 * KEYS * SIZE].view(KEYS, SIZE, WIDTH)
    assert torch.equal(after[-queries:].view(HEADS, SIZE, WIDTH), keys.repeat_interleave(HEADS // KEYS, 0))


class _Config:
    def to_dict(self) -> dict[str, Any]:
        return CONFIG


# Until `python -m tools.prove_all toy` has checked the type against a live model, it is scored with `unproven` only.
