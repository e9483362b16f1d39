"""Models that someone wrote in torch: scored where the names say enough, otherwise told what to do."""

from __future__ import annotations

import re

import numpy as np
import pytest

import attngeo
from attngeo.arrays import Floats
from attngeo.errors import LayoutError

LAYERS, HEADS, WIDTH, SIZE = 2, 4, 32, 8


def weights() -> Floats:
    """Return queries and keys [layers, 2, heads, size, width], as rows of tensors [out, in]."""
    return np.random.default_rng(0).normal(size=(LAYERS, 2, HEADS, SIZE, WIDTH)).astype(np.float32)


def joined(names: tuple[str, str]) -> dict[str, Floats]:
    return {
        f"layers.{layer}.{name}.weight": both[side].reshape(HEADS * SIZE, WIDTH)
        for layer, both in enumerate(weights())
        for side, name in enumerate(names)
    }


def test_a_module_per_head_is_not_taken_for_a_layer() -> None:
    per_head = {
        f"blocks.{layer}.attention.heads.{head}.{name}.weight": both[side, head]
        for layer, both in enumerate(weights())
        for head in range(HEADS)
        for side, name in enumerate(("query", "key"))
    }
    message = "blocks.0.attention.heads.0.query.weight holds the queries of one head .* join the heads of each layer"
    with pytest.raises(LayoutError, match=message):
        attngeo.score(per_head, num_heads=HEADS)


def test_the_advice_for_an_unknown_layout_can_be_followed() -> None:
    with pytest.raises(LayoutError, match="unknown layout; none of its tensors are known") as caught:
        attngeo.score(joined(("attention.ask", "attention.offer")))
    query_name, key_name = re.findall(r"layers\.0\.(\w+)\.weight", str(caught.value).split("pass a state dict")[1])
    table = attngeo.score(joined((query_name, key_name)), num_heads=HEADS, nulls=False)
    for layer, (query, key) in enumerate(weights().astype(float)):
        for head in range(HEADS):
            form = query[head].T @ key[head]
            [found] = table.frame.filter(layer=layer, head=head)["symmetry"]
            assert found == pytest.approx(np.trace(form @ form) / (form**2).sum(), abs=1e-6)


def test_the_layout_of_a_fused_weight_is_told() -> None:
    """A weight whose rows hold query, key and value of one head after the other would be read wrongly."""
    query, key = joined(("q", "k"))["layers.0.q.weight"], joined(("q", "k"))["layers.0.k.weight"]
    fused = {"layers.0.qkv.weight": np.concatenate([query, key, key])}
    table = attngeo.score(fused, num_heads=HEADS, nulls=False)
    [note] = [note for note in table.notes if "qkv.weight" in note]
    assert note == "state dict: qkv.weight is read as all queries, then all keys, then all values; no config says so"
    separate = attngeo.score(joined(("q_proj", "k_proj")), num_heads=HEADS, nulls=False, layers=0)
    assert separate.frame["symmetry"].to_list() == pytest.approx(table.frame["symmetry"].to_list(), abs=1e-9)
    assert not any("qkv" in note for note in separate.notes)


@pytest.mark.parametrize(
    "adapter",
    [
        "layers.0.attn.q_proj.lora_A",
        "layers.0.attn.k_proj.lora_B.weight",
        "layers.0.attn.linear_q_adapter_list.1.0.weight",
    ],
)
def test_weights_that_an_adapter_changes_are_not_scored_without_it(adapter: str) -> None:
    state = {f"layers.0.attn.{name}_proj.weight": np.eye(8, dtype=np.float32) for name in "qkv"}
    of_values = {**state, "layers.0.attn.v_proj.lora_A": np.ones((2, 8), np.float32)}
    assert len(list(attngeo.attention_layers(of_values, num_heads=2))) == 1
    with pytest.raises(LayoutError, match=f"{re.escape(adapter)}: an adapter changes the queries or keys"):
        list(attngeo.attention_layers({**state, adapter: np.ones((2, 8), np.float32)}, num_heads=2))
