"""Live models of types with fixed positions read them before they are trained; models of other types do not."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from attngeo.applications.compare.relation import has_fixed_positions  # noqa: E402
from attngeo.live.load import quiet_transformers  # noqa: E402
from tools.prove_positions import is_pinned, verdict  # noqa: E402

TEXT = {"vocab_size": 60, "max_position_embeddings": 40}
SMALL: dict[str, Any] = {
    "distilbert": (transformers.DistilBertModel, {"dim": 16, "n_heads": 2, "n_layers": 2, "hidden_dim": 16, **TEXT}),
    "xlm": (transformers.XLMModel, {"emb_dim": 16, "n_heads": 2, "n_layers": 2, "n_words": 60, "use_lang_emb": False}),
    "trocr": (
        transformers.TrOCRForCausalLM,
        {"d_model": 16, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 16, **TEXT},
    ),
}


@pytest.mark.parametrize(
    "model_type",
    ["whisper", "vit_mae", *(pytest.param(name, marks=pytest.mark.slow) for name in ("marian", "patchtst"))],
)
def test_listed_types_read_fixed_values(model_type: str) -> None:
    assert has_fixed_positions({"model_type": model_type})
    with quiet_transformers():
        assert verdict(model_type) is True


@pytest.mark.parametrize(
    "model_type",
    ["bert", "llama", "vit", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "opt", "t5"))],
)
def test_other_types_do_not(model_type: str) -> None:
    assert not has_fixed_positions({"model_type": model_type})
    with quiet_transformers():
        assert verdict(model_type) is False


@pytest.mark.parametrize(
    ("model_type", "switch", "fixed"),
    [
        ("distilbert", "sinusoidal_pos_embds", True),
        ("xlm", "sinusoidal_embeddings", True),
        ("trocr", "use_learned_position_embeddings", False),
    ],
)
def test_switches_in_the_config(model_type: str, switch: str, fixed: bool) -> None:
    model_class, settings = SMALL[model_type]
    for value in (fixed, not fixed):
        config = model_class.config_class(**settings, **{switch: value})
        with quiet_transformers():
            assert is_pinned(model_class, config) is (value == fixed)
        assert has_fixed_positions(config.to_dict()) is (value == fixed)


def test_fixed_positions_are_found_in_parts_of_a_config() -> None:
    assert has_fixed_positions({"model_type": "x", "decoder": {"model_type": "marian"}})
    assert not has_fixed_positions(None)
