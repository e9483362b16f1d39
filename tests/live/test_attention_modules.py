"""Attention modules are found by stack and layer, with the names that scoring uses."""

from __future__ import annotations

import pytest

from attngeo.errors import InputError
from attngeo.live.attention_modules import Stack, attention_stacks
from tests.live.tiny_live_models import tiny_model


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        ("bert", {"encoder": 2}),
        ("gpt2", {"decoder": 2}),
        ("t5", {"encoder": 2, "decoder": 2, "cross": 2}),
        ("clip", {"text": 2, "vision": 2}),
    ],
)
def test_stacks_have_the_names_of_scoring(kind: str, layers: dict[str, int]) -> None:
    model = tiny_model(kind)
    stacks = attention_stacks(model)
    assert {name: len(stack.attentions) for name, stack in stacks.items()} == layers
    for name, stack in stacks.items():
        assert stack.cross == (name == "cross") and not stack.unsupported
        assert [attention.layer for attention in stack.attentions] == [0, 1]
        for attention in stack.attentions:
            assert model.get_submodule(attention.path) is attention.module
            assert callable(attention.eager)
            assert attention.location.known
            assert set(attention.location.tensors) <= set(model.state_dict())


def test_unsupported_layers_are_named_only_where_they_are_requested() -> None:
    stack = attention_stacks(tiny_model("bert"))["encoder"]
    partly = Stack("encoder", stack.attentions[:1], (1, 3))
    partly.check_supported("model type x", frozenset([0]))
    message = "model type x: layer 3 of its encoder does not go through AttentionInterface; layers 0 do"
    with pytest.raises(InputError, match=message):
        partly.check_supported("model type x", frozenset([0, 3]))
    with pytest.raises(InputError, match="layer 1 of its encoder"):
        partly.check_supported("model type x", None)
