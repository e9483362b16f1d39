"""An initialisation that is refused names the layer or the tensor and leaves the model as it was."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from attngeo.errors import InputError, LayoutError
from attngeo.training.initialisation.authors import authors_init_
from attngeo.training.initialisation.controls import skewed_init_
from attngeo.training.initialisation.mimetic import mimetic_init_
from attngeo.training.initialisation.symmetric import symmetric_init_
from tests.training.initialisation.scored_symmetry import symmetry_scores, unchanged_since_now
from tests.weights import tiny_models

pytestmark = pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning")


def test_weights_that_cannot_be_rescaled_leave_every_layer_unchanged() -> None:
    model = tiny_models.bert()
    self_attention = model.bert.encoder.layer[1].attention.self  # layer 0 could be written
    self_attention.key.weight.data.zero_()
    unchanged = unchanged_since_now(model)
    with pytest.raises(InputError, match=r"encoder layer 1 \(.*\): its key weights have std 0, so that no factor"):
        symmetric_init_(model, scale="unit")
    assert unchanged()
    self_attention.key.weight.data[3, 4] = math.inf
    unchanged = unchanged_since_now(model)
    with pytest.raises(InputError, match=r"encoder layer 1 .* its key weights contain NaN or infinity"):
        symmetric_init_(model)
    assert unchanged()


def test_an_odd_head_size_cannot_be_skewed() -> None:
    model = tiny_models.bert(hidden_size=36)
    unchanged = unchanged_since_now(model)
    with pytest.raises(InputError, match="head size 9 is odd"):
        skewed_init_(model)
    assert unchanged()


def test_a_missing_value_projection_is_named() -> None:
    model = tiny_models.bert()
    model.bert.encoder.layer[1].attention.self.value = torch.nn.Identity()
    unchanged = unchanged_since_now(model)
    for initialise in (lambda: mimetic_init_(model, value=True), lambda: authors_init_(model)):
        with pytest.raises(LayoutError, match=r"encoder layer 1 .*: no value projection found"):
            initialise()
        assert unchanged()


@pytest.mark.parametrize("scale", [[1], "Unit", "units", True, 0, -1.0, math.nan])
def test_a_scale_is_unit_or_a_positive_number(scale: Any) -> None:
    model = tiny_models.bert()
    unchanged = unchanged_since_now(model)
    with pytest.raises(InputError, match="expected None, 'unit', 'half-unit' or a positive number"):
        symmetric_init_(model, scale=scale)
    assert unchanged()


def test_adapted_queries_and_keys_are_refused_and_other_adapters_do_not_matter() -> None:
    """Beside an adapter the form would not be symmetric; an adapted layer must not be skipped silently either."""
    peft = pytest.importorskip("peft")

    def adapted(**targets: Any) -> Any:
        return peft.get_peft_model(tiny_models.bert(), peft.LoraConfig(r=4, init_lora_weights=False, **targets))

    for targets in ({"target_modules": ["query", "value"]}, {"target_modules": ["key"], "layers_to_transform": [0]}):
        model = adapted(**targets)
        unchanged = unchanged_since_now(model)
        with pytest.raises(LayoutError, match=r"layer\.0\.attention\.self\.\w+\.weight: is adapted"):
            symmetric_init_(model)
        assert unchanged()
    model = adapted(target_modules=["value"])
    assert len(symmetric_init_(model).layers) == 2
    assert all(abs(s - 1) < 1e-6 for s in symmetry_scores(model.unload())[False])


def test_weights_that_cannot_be_written_are_named() -> None:
    with pytest.raises(InputError, match="OrderedDict: expected a torch module"):
        symmetric_init_(tiny_models.bert().state_dict())
    with pytest.raises(LayoutError, match="the layers asked for are all cross-attention"):
        symmetric_init_(tiny_models.t5(), stack="cross")
    with torch.inference_mode():
        model = tiny_models.bert()
    with pytest.raises(LayoutError, match="was made in inference mode"):
        symmetric_init_(model)
    model = tiny_models.bert()
    torch.nn.utils.parametrizations.weight_norm(model.bert.encoder.layer[0].attention.self.query)
    with pytest.raises(LayoutError, match=r"layer\.0\..*query\.weight: is adapted, or computed from other parameters"):
        symmetric_init_(model)


def test_latent_attention_cannot_be_written() -> None:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    model = DeepseekV3ForCausalLM(DeepseekV3Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=40, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=1, n_routed_experts=2, n_group=1, topk_group=1, num_experts_per_tok=1,
        moe_intermediate_size=16))  # fmt: skip
    unchanged = unchanged_since_now(model)
    with pytest.raises(LayoutError, match="latent attention; its queries and keys are products"):
        symmetric_init_(model)
    assert unchanged()


@pytest.mark.parametrize("seed", ["1", 1.0, None, True, math.nan])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    model = tiny_models.bert()
    unchanged = unchanged_since_now(model)
    for initialise in (skewed_init_, mimetic_init_, authors_init_):
        with pytest.raises(InputError, match=r"seed is .*, expected a whole number"):
            initialise(model, seed=seed)
    assert unchanged()


def test_a_strength_that_is_not_finite_leaves_every_layer_unchanged() -> None:
    model = tiny_models.bert()
    unchanged = unchanged_since_now(model)
    with pytest.raises(InputError, match="value_strength is nan, expected a finite number"):
        mimetic_init_(model, value=True, value_strength=math.nan)
    with pytest.raises(InputError, match="strength is inf, expected a finite number"):
        mimetic_init_(model, strength=math.inf)
    assert unchanged()
