"""Rotation against live models: which dimensions rotate, how fast, in which layers; mistakes are noticed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo import RotaryPairs
from attngeo.weights.layout.facts import family

SHARED = {"base", "scaling"}
# model type → what is expected of its rules, in order
EXPECTED: dict[str, list[dict[str, Any]]] = {
    "llama": [{"pairs": "halves", "size": "head", "at": "start"}],
    "gpt_neox": [{"pairs": "halves", "size": "share", "at": "start"}],
    "gptj": [{"pairs": "neighbours", "size": "rotary_dim", "at": "start"}],
    "phi3": [{"pairs": "halves", "size": "share", "at": "start"}],
    "deepseek_v3": [
        {"pairs": "neighbours", "size": "qk_rope_head_dim", "at": "end"},
        {"pairs": "halves", "size": "qk_rope_head_dim", "at": "end", "when": {"rope_interleave": False}},
    ],
    "gemma3_text": [{"pairs": "halves", "size": "head", "at": "start"}],
    "modernbert": [{"pairs": "halves", "size": "head", "at": "start"}],
    "qwen3": [{"pairs": "halves", "size": "head", "at": "start"}],
    "cohere": [{"pairs": "neighbours", "size": "head", "at": "start"}],
    "cohere2": [
        {"pairs": "neighbours", "size": "head", "at": "start", "kind": "sliding_attention"},
        {"pairs": "none", "kind": "full_attention"},
    ],
    "smollm3": [{"pairs": "none", "kind": "nope"}, {"pairs": "halves", "size": "head", "at": "start"}],
    "esm": [{"pairs": "none"}, {"pairs": "halves", "when": {"position_embedding_type": "rotary"}}],
    "roformer": [{"pairs": "neighbours", "size": "head", "at": "start"}],
    "pixtral": [{"pairs": "halves", "axes": "split"}],
    "bert": [{"pairs": "none"}],
    "vit": [{"pairs": "none"}],
}


SLOW = ("deepseek_v3", "cohere", "cohere2", "modernbert", "qwen3", "phi3", "roformer", "vit")  # in `make test-all`

pytestmark = pytest.mark.usefixtures("restored_facts", "ignored_warnings")


@pytest.mark.parametrize(
    "model_type", [pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW else kind for kind in EXPECTED]
)
def test_the_rule_agrees_with_the_live_products(model_type: str) -> None:
    from tools.prove_all import prove_type

    shipped = family(model_type).rotary
    verdict = prove_type(model_type)
    assert verdict["rotary_unproved"] == {}
    assert verdict["rotary_worst"] <= 1e-4
    assert list(shipped) == verdict["rotary"]  # the package ships these rules
    assert len(shipped) == len(EXPECTED[model_type])
    for rule, expected in zip(shipped, EXPECTED[model_type], strict=True):
        assert {key: rule.get(key) for key in expected} == expected
        if model_type not in ("gptj", "roformer", "esm", "pixtral") and rule["pairs"] != "none" and "when" not in rule:
            assert set(rule["reads"]) >= SHARED


def test_hidden_gains_after_the_rotation_are_not_proved() -> None:
    from tools.prove_all import prove_type

    verdict = prove_type("hunyuan_v1_dense")
    assert verdict["status"] == "right" and verdict["rotary"] == []
    assert "agree with no hypothesis" in verdict["rotary_unproved"]["layers.*.self_attn"]


def rotating_llama(**parameters: Any) -> tuple[Any, Any, Any]:
    """Return a layer of a tiny model, its own product at spread positions, and where its input is."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    from attngeo import attention_layers
    from tools.proof.agreement import compare
    from tools.proof.comparable_model import randomise
    from tools.proof.product_recorder import NAME
    from tools.proof.recorded_runs import record_model

    config = LlamaConfig(
        hidden_size=48,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_hidden_layers=1,
        intermediate_size=32,
        vocab_size=64,
        rope_parameters={"rope_theta": 1000.0, "rope_type": "default", **parameters},
    )
    torch.manual_seed(0)
    model = LlamaModel._from_config(config, attn_implementation=NAME).eval()
    randomise(model)
    (product, *_), errors = record_model(model, config, rotating=True, spread=True)
    assert not errors and int(product.positions.max()) > 300
    weights = next(iter(attention_layers(model)))
    match = compare(weights, product, weights.rotary)
    assert match is not None
    return weights, product, match


def test_wrong_pairs_and_wrong_frequencies_are_noticed() -> None:
    from tools.proof.agreement import product_error

    weights, product, match = rotating_llama()
    right = weights.rotary
    assert weights.rotary_known and match.error < 1e-4

    def error(rotary: RotaryPairs | None) -> float:
        return product_error(weights, product, match, rotary, product.positions)

    theta = right.frequencies
    assert error(right) < 1e-4
    assert error(None) > 1e-2  # no rotation
    assert error(RotaryPairs.neighbours(theta)) > 1e-2
    assert error(RotaryPairs.halves(-theta)) > 1e-2  # Δ = query position − key position
    assert error(RotaryPairs.halves(theta[::-1])) > 1e-2
    assert error(RotaryPairs.halves(theta**1.01)) > 1e-3  # another base
    for pair in range(len(theta)):  # one frequency off by a tenth, the slowest included
        wrong = theta.copy()
        wrong[pair] *= 1.1
        assert error(RotaryPairs.halves(wrong)) > 1e-3, pair
    exchanged = dataclasses.replace(weights, query=weights.query[::-1])
    assert product_error(exchanged, product, match, right, product.positions) > 1e-2


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "dynamic", "factor": 3.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
        {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.5, 2.0, 4.0],
            "long_factor": [8.0] * 4,
            "factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    ],
    ids=lambda parameters: parameters["rope_type"],
)
def test_every_scaling_type_agrees_with_the_live_products(parameters: dict[str, Any]) -> None:
    weights, _, match = rotating_llama(**parameters)
    assert weights.rotary_known and match.error < 1e-4
    assert (
        not np.allclose(weights.rotary.frequencies, 1000.0 ** -(np.arange(4) / 4))
        or parameters["rope_type"] == "dynamic"
    )
