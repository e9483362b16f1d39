"""Frequencies and attention factors against transformers' own, for every scaling type and for old and new configs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attngeo.weights.layout.config_scope import scope_of
from attngeo.weights.layout.families import family
from attngeo.weights.layout.rope import RopeConfigError, RopeSettings, frequencies, layer_kind, rope_settings

LLAMA: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 4096}
SCALINGS: dict[str, list[dict[str, Any]]] = {
    "linear": [{"factor": 4.0}],
    "dynamic": [{"factor": 4.0}],
    "proportional": [{"partial_rotary_factor": 0.25}, {"partial_rotary_factor": 0.3, "factor": 2.0}],
    "llama3": [
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
    ],
    "yarn": [
        {"factor": 4.0, "original_max_position_embeddings": 1024},
        {"factor": 40.0, "original_max_position_embeddings": 128, "mscale": 1.0, "mscale_all_dim": 0.7},
        {"factor": 8.0, "original_max_position_embeddings": 512, "truncate": False, "beta_fast": 16, "beta_slow": 2},
        {"factor": 8.0, "original_max_position_embeddings": 512, "attention_factor": 1.3},
        {"factor": None, "original_max_position_embeddings": 512},
    ],
    "longrope": [
        {"short_factor": [1 + i / 8 for i in range(16)], "long_factor": [2.0] * 16, "factor": 8.0},
        {
            "short_factor": [1.5] * 16,
            "long_factor": [2.0] * 16,
            "original_max_position_embeddings": 256,
        },
        {
            "short_factor": [1.5] * 16,
            "long_factor": [2.0] * 16,
            "attention_factor": 1.25,
        },
    ],
}
CASES = [(kind, case) for kind, cases in SCALINGS.items() for case in cases]


@pytest.mark.parametrize(("kind", "case"), CASES, ids=[f"{kind}-{i}" for i, (kind, _) in enumerate(CASES)])
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_every_scaling_type_agrees_with_transformers(kind: str, case: dict[str, Any], base: float) -> None:
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    parameters = {"rope_type": kind, "rope_theta": base, **case}
    config = LlamaConfig(**LLAMA, rope_parameters=dict(parameters))
    theirs, factor = utils.ROPE_INIT_FUNCTIONS[kind](config)
    settings = rope_settings(scope_of({"model_type": "llama", **LLAMA, "rope_parameters": parameters}, "layers.0"))
    ours, our_factor = frequencies(settings, 32)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-6)
    assert our_factor == pytest.approx(factor, rel=1e-12)


def test_no_scaling_type_of_transformers_is_missing() -> None:
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    assert set(SCALINGS) == set(utils.ROPE_INIT_FUNCTIONS)


def test_plain_frequencies_are_powers_of_the_base() -> None:
    theta, factor = frequencies(RopeSettings(base=10000.0), 8)
    np.testing.assert_allclose(theta, [1, 0.1, 0.01, 0.001], rtol=1e-12)
    assert factor == 1.0


OLD_CONFIGS: list[dict[str, Any]] = [
    {"model_type": "llama", "rope_theta": 500000.0},
    {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {
        "model_type": "llama",
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    {"model_type": "mistral"},
    {"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 5000},
    {"model_type": "gpt_neox"},
    {"model_type": "phi", "partial_rotary_factor": 0.4},
    {"model_type": "stablelm", "rope_theta": 12000, "partial_rotary_factor": 0.5},
    {
        "model_type": "phi3",
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", "short_factor": [1.1] * 48, "long_factor": [2.0] * 48},
    },
    {
        "model_type": "qwen2",
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    },
    {
        "model_type": "deepseek_v3",
        "rope_scaling": {
            "type": "yarn",
            "factor": 40,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 4096,
        },
    },
    {"model_type": "gpt_oss"},
]


@pytest.mark.parametrize("old", OLD_CONFIGS, ids=lambda old: "-".join(map(str, list(old.values())[:3]))[:40])
def test_older_keys_mean_what_transformers_makes_of_them(old: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    from transformers import CONFIG_MAPPING

    given = {key: value for key, value in old.items() if key != "model_type"}
    config = CONFIG_MAPPING[old["model_type"]](**given)
    new = {**config.to_dict(), "model_type": old["model_type"]}
    before, after = (rope_settings(scope_of(c, "layers.0.self_attn")) for c in (old, new))
    assert (before.base, before.share, before.kind) == (after.base, after.share, after.kind)
    for size in (96,):
        for ours, theirs in zip(frequencies(before, size), frequencies(after, size), strict=True):
            np.testing.assert_allclose(ours, theirs)


@pytest.mark.parametrize(
    ("old", "layers"),
    [
        ({"model_type": "modernbert", "global_rope_theta": 80000.0, "local_rope_theta": 9000.0}, 6),
        ({"model_type": "modernbert", "global_attn_every_n_layers": 2}, 6),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 12),
        ({"model_type": "gemma3_text", "rope_local_base_freq": 9000.0, "sliding_window_pattern": 3}, 12),
    ],
)
def test_layers_of_two_kinds_have_frequencies_of_their_own(old: dict[str, Any], layers: int) -> None:
    pytest.importorskip("transformers")
    from transformers import CONFIG_MAPPING

    given = {key: value for key, value in old.items() if key != "model_type"}
    config = CONFIG_MAPPING[old["model_type"]](**given, num_hidden_layers=layers)
    scope = scope_of(old, "layers.0")
    kinds = [layer_kind(scope, i) for i in range(layers)]
    assert kinds == config.layer_types and len(set(kinds)) == 2
    for kind in set(kinds):
        ours = rope_settings(scope, kind)
        theirs = rope_settings(scope_of({**config.to_dict(), "model_type": old["model_type"]}, "layers.0"), kind)
        assert (ours.base, ours.kind) == (theirs.base, theirs.kind)
        np.testing.assert_array_equal(frequencies(ours, 32)[0], frequencies(theirs, 32)[0])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_theta": "high"}, "rope_theta is 'high', expected a number"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0, expected a number above 1"),
        ({"rope_theta": True}, "rope_theta is True"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5, expected a share from 0 to 1"),
        ({"partial_rotary_factor": float("nan")}, "partial_rotary_factor is nan"),
        ({"rope_scaling": {"type": "wavy", "factor": 2.0}}, "rope_type is 'wavy', expected one of default"),
        ({"rope_scaling": {"type": ["linear"]}}, r"rope_type is \['linear'\]"),
        ({"rope_scaling": {"type": "linear"}}, "factor is None, expected a number"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0.0, expected a positive number"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear', expected a mapping"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], expected a mapping"),
        ({"rope_parameters": {"full_attention": {}}}, "expected an entry for layers of kind None"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "expected a list of 8 numbers"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [-1.0] * 8}}, "expected positive numbers"),
        (
            {
                "rope_scaling": {
                    "type": "llama3",
                    "factor": 2,
                    "low_freq_factor": 4,
                    "high_freq_factor": 4,
                    "original_max_position_embeddings": 64,
                }
            },
            "high_freq_factor is 4.0, expected another value than low_freq_factor",
        ),
    ],
)
def test_configs_that_contradict_themselves_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(RopeConfigError, match=message):
        frequencies(rope_settings(scope_of(config, "layers.0")), 16)


def test_the_facts_give_the_defaults_of_a_type() -> None:
    assert family("gpt_neox").defaults["rope_parameters"]["partial_rotary_factor"] == 0.25
    assert family("gemma3_text").defaults["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"]
