"""What rotates in the layers of a checkpoint, by its config of any year; frequencies against transformers' own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attngeo
from attngeo import RotaryPairs
from attngeo.weights.layout.facts import scope_of
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.layout.rope import frequencies, layer_kind, rope_settings
from attngeo.weights.sources.open import open_checkpoint

HEADS, SIZE = 2, 8
CONFIG = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": SIZE, "hidden_size": HEADS * SIZE}


def llama(names: str = "model.layers.{}.self_attn.{}_proj.weight", layers: int = 2) -> dict[str, Any]:
    """Return the queries and keys of a small random model."""
    random = np.random.default_rng(0)
    width = HEADS * SIZE
    return {
        names.format(layer, name): random.normal(size=(width, width)).astype(np.float32)
        for layer in range(layers)
        for name in "qk"
    }


def plans(weights: dict[str, Any], **config: Any) -> tuple[Any, ...]:
    """Return the layers that attngeo finds in these weights under this config."""
    with open_layers(open_checkpoint(weights, config=CONFIG | config)) as layers:
        return layers.unread


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
def test_every_scaling_type_agrees_with_transformers(kind: str, case: dict[str, Any]) -> None:
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    parameters = {"rope_type": kind, "rope_theta": 500000.0, **case}
    config = LlamaConfig(**LLAMA, rope_parameters=dict(parameters))
    theirs, factor = utils.ROPE_INIT_FUNCTIONS[kind](config)
    settings = rope_settings(scope_of({"model_type": "llama", **LLAMA, "rope_parameters": parameters}, "layers.0"))
    ours, our_factor = frequencies(settings, 32)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-6)
    assert our_factor == pytest.approx(factor, rel=1e-12)


def test_no_scaling_type_of_transformers_is_missing() -> None:
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    assert set(SCALINGS) == set(utils.ROPE_INIT_FUNCTIONS)


OLD_CONFIGS: list[dict[str, Any]] = [
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
    {"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 5000},
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
    for ours, theirs in zip(frequencies(before, 96), frequencies(after, 96), strict=True):
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


def theta(base: float) -> list[float]:
    """Return the frequencies of the pairs of one head."""
    return (base ** -(np.arange(SIZE // 2) / (SIZE // 2))).tolist()  # type: ignore[no-any-return]


LAYERS, ENCODER = "model.layers.{}.self_attn.{}_proj.weight", "encoder.layer.{}.attention.self.{}.weight"
GRANITE = {"model_type": "granitemoehybrid", "layer_types": ["linear_attention", "full_attention"]}
OLDER_GRANITE = GRANITE | {"layer_types": ["mamba", "attention"]}
# What the config says → names of tensors, the config, and the frequencies of each layer; None: nothing rotates.
ROTATIONS: dict[str, tuple[str, dict[str, Any], list[list[float] | None]]] = {
    "a base": (LAYERS, {"model_type": "llama", "rope_theta": 500.0}, [theta(500), theta(500)]),
    "a base, and that positions rotate": (
        ENCODER, {"model_type": "esm", "position_embedding_type": "rotary", "rope_theta": 500.0},
        [theta(500), theta(500)],
    ),
    "nothing, of a type that does not rotate": (
        ENCODER, {"model_type": "bert", "position_embedding_type": "absolute"}, [None, None],  # a key of older configs
    ),
    "nothing, of a type that rotates backwards": (
        LAYERS, {"model_type": "nanochat", "rope_theta": 1e4}, [[-x for x in theta(1e4)]] * 2,
    ),
    "that layers are excepted": (LAYERS, {"model_type": "smollm3", "no_rope_layers": [0, 1]}, [None, theta(2e6)]),
    "no switch, in a hybrid": (LAYERS, GRANITE, [None, None]),
    "that nothing rotates, in a hybrid": (LAYERS, GRANITE | {"position_embedding_type": "nope"}, [None, None]),
    "that it rotates, in a hybrid of older transformers": (
        LAYERS, OLDER_GRANITE | {"position_embedding_type": "rope", "rope_theta": 1e7}, [None, theta(1e7)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", ROTATIONS)
def test_layers_rotate_as_their_type_and_their_config_say(said: str) -> None:
    names, config, expected = ROTATIONS[said]
    weights = llama(names)
    if names == ENCODER:
        weights = {name.replace(".q.", ".query.").replace(".k.", ".key."): w for name, w in weights.items()}
    layers = range(2)
    if "layer_types" in config:  # its other layers have no queries
        weights, layers = {name: tensor for name, tensor in weights.items() if ".layers.1." in name}, range(1, 2)
    found = plans(weights, **config)
    for plan, layer in zip(found, layers, strict=True):
        assert plan.rotary_known
        assert (plan.rotary is None) == (expected[layer] is None)
        if plan.rotary is not None:
            assert plan.rotary.frequencies.tolist() == pytest.approx(expected[layer])
            assert plan.rotary.pairs.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_a_vision_tower_inside_an_encoder_does_not_rotate_with_it() -> None:
    """T5Gemma 2: the path of the tower ends with that of the encoder's layers."""
    names = "encoder.{}layers.{{}}.self_attn.{{}}_proj.weight"
    weights = llama(names.format("")) | llama(names.format("vision_tower.encoder."))
    text = CONFIG | {"model_type": "t5gemma2_text", "layer_types": ["full_attention"] * 2}
    encoder = {"model_type": "t5gemma2_encoder", "text_config": text, "vision_config": CONFIG}
    found = plans(weights, model_type="t5gemma2", encoder=encoder, decoder=text)
    assert {(plan.stack, plan.rotary_known, plan.rotary is not None) for plan in found} == {
        ("text", True, True),
        ("vision", True, False),
    }


def test_nothing_is_known_without_a_model_type() -> None:
    with open_layers(llama(), num_heads=HEADS) as layers:
        assert all(not plan.rotary_known and plan.rotary is None for plan in layers.unread)


def test_the_parts_of_a_larger_model_follow_their_own_types() -> None:
    """Checkpoints of several ages name the language model differently; its own type says how it rotates."""
    text = {**CONFIG, "model_type": "llama", "rope_theta": 700.0}
    config = {"model_type": "llava", "text_config": text, "vision_config": {"model_type": "clip_vision_model"}}
    for prefix in ("language_model.model.layers", "model.language_model.layers"):
        weights = llama(prefix + ".{}.self_attn.{}_proj.weight")
        with open_layers(open_checkpoint(weights, config=config)) as layers:
            for plan in layers.unread:
                assert plan.rotary_known and plan.rotary.frequencies[1] == pytest.approx(700.0**-0.25)


def test_the_window_of_longrope_is_that_before_scaling() -> None:
    """Beyond it the model uses other frequencies, so an average over the whole window would be of no form it has."""
    scaling = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [4.0] * 4}
    for original in ({"original_max_position_embeddings": 64}, {}):
        (plan, _) = plans(llama(), model_type="llama", rope_scaling=scaling | original, max_position_embeddings=256)
        assert plan.rotary_known and plan.rotary.window == (64 if original else 256)


def test_every_nth_layer_does_not_rotate_where_the_config_says_so() -> None:
    pytest.importorskip("transformers")
    from transformers import SmolLM3Config

    rotates = SmolLM3Config(num_hidden_layers=7, no_rope_layer_interval=3).no_rope_layers
    found = plans(llama(layers=7), model_type="smollm3", no_rope_layer_interval=3)
    assert all(plan.rotary_known for plan in found)
    assert [plan.rotary is not None for plan in found] == [bool(one) for one in rotates]


def test_settings_that_a_type_was_not_shown_to_read_are_not_trusted() -> None:
    (plan, _) = plans(llama(), model_type="llama", partial_rotary_factor=0.5)  # LLaMA rotates whole heads
    assert not plan.rotary_known


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_theta": "high"}, "rope_theta is 'high', expected a number"),
        ({"rope_scaling": {"type": "wavy", "factor": 2.0}}, "rope_type is 'wavy', expected one of default"),
        ({"rope_scaling": {"type": "linear"}}, "factor is None, expected a number"),
        ({"rope_scaling": "linear"}, "its rotary settings cannot be used"),
        ({"rope_parameters": {"full_attention": {}}}, "expected an entry for layers of kind None"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "expected a list of 4 numbers"),
    ],
)
def test_a_wrong_rotary_config_gives_one_warning_and_plain_scores(config: dict[str, Any], message: str) -> None:
    config = {**CONFIG, "model_type": "llama", **config}
    with pytest.warns(UserWarning) as caught:
        table = attngeo.score(open_checkpoint(llama(), config=config), nulls=False)
    (warning,) = [one for one in caught if "rotary" in str(one.message)]
    assert re.search(f"config.json: .*{message}", str(warning.message))
    assert table.frame["symmetry"].null_count() == 0
    assert table.frame["symmetry_rope"].null_count() == len(table.frame)


def test_an_odd_number_of_rotating_dimensions_is_named() -> None:
    weights = {
        f"gpt_neox.layers.0.attention.query_key_value.{leaf}": np.ones(shape, np.float32)
        for leaf, shape in (("weight", (72, 24)), ("bias", (72,)))
    }
    config = {"model_type": "gpt_neox", "num_attention_heads": 2, "hidden_size": 24, "rotary_pct": 0.25}
    message = "rotary_pct is 0.25, expected a multiple of 2 rotating dimensions, not 3 of 12"
    with pytest.warns(UserWarning, match=message), open_layers(open_checkpoint(weights, config=config)) as layers:
        assert [plan.rotary_known for plan in layers.unread] == [False]


def test_the_gguf_of_smollm2_rotates_neighbours(smollm2: Path) -> None:
    with open_layers(smollm2) as layers:
        for plan in layers.unread:
            assert plan.rotary_known
            assert plan.rotary == RotaryPairs.neighbours(100000.0 ** -(np.arange(32) / 32), window=8192)
