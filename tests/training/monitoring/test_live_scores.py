"""Scores of a live model: those of its saved checkpoint, with adapters, gains and parametrisations included."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo.live.checkpoint import LiveCheckpoint  # noqa: E402
from attngeo.training.monitoring.checkpoint_figures import checkpoint_figures  # noqa: E402
from attngeo.training.monitoring.live_scores import copy_to_cpu, measure_layers  # noqa: E402
from attngeo.training.monitoring.monitor import Monitor  # noqa: E402
from attngeo.training.monitoring.records import make_record  # noqa: E402
from attngeo.weights.layout.layers import open_layers  # noqa: E402
from attngeo.weights.layout.rotary import RotaryPairs  # noqa: E402
from tests.training.monitoring.record_checks import difference_when_saved, make_batch, random_tokens  # noqa: E402
from tests.weights.tiny_models import FAMILIES, bert, llama  # noqa: E402


@pytest.fixture(autouse=True)
def no_progress_bars() -> Any:
    from transformers.utils import logging

    logging.disable_progress_bar()


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_the_saved_checkpoint(family: str) -> None:
    model = FAMILIES[family]()
    row = Monitor(every=1)(0, model)
    assert row is not None and "max_logit" not in row
    assert difference_when_saved(row, model) <= 1e-6


# Separate weights in memory in place of a fused one (GTE), another order of the dimensions of a head (Mistral Large 4),
# other names, which decide whether a layer is left out (RF-DETR).
@pytest.mark.parametrize("model_type", ["gte", "mistral_large4", "rf_detr"])
def test_scores_of_types_that_transformers_saves_otherwise_are_those_of_the_saved_model(model_type: str) -> None:
    from tools.proof.tiny_model import tiny_models

    model = next(iter(tiny_models(model_type)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        row = Monitor(every=1)(0, model)
    assert row is not None
    assert any("layers are left out" in str(warning.message) for warning in caught) == (model_type != "gte")
    assert difference_when_saved(row, model) <= 1e-6


def tiny_qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=40))  # fmt: skip


def tiny_cohere() -> Any:
    """Return a Cohere, whose QK-norms are LayerNorms."""
    from transformers import CohereConfig, CohereForCausalLM

    return CohereForCausalLM(CohereConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=40, use_qk_norm=True))  # fmt: skip


def tiny_deepseek() -> Any:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    return DeepseekV3ForCausalLM(DeepseekV3Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=1, first_k_dense_replace=1, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
        intermediate_size=40, moe_intermediate_size=8, n_routed_experts=2, num_experts_per_tok=1, n_group=1,
        topk_group=1))  # fmt: skip


@pytest.mark.parametrize("make", [tiny_qwen3, tiny_cohere, tiny_deepseek])
def test_scores_include_qk_norm_gains_and_latent_products(make: Any) -> None:
    torch.manual_seed(0)
    model = make().double()
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.5, 2.0)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    row = Monitor()(0, model, {"input_ids": random_tokens()})
    assert row is not None and row["max_logit"][0] > 0
    assert difference_when_saved(row, model) <= 1e-6
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_norms_and_finer_figures_are_those_of_the_dense_form() -> None:
    model = llama()
    row = Monitor()(0, model)
    assert row is not None
    attention = model.model.layers[1].self_attn
    query = attention.q_proj.weight.detach().double().numpy().reshape(4, 8, 32)
    key = attention.k_proj.weight.detach().double().numpy().reshape(2, 8, 32).repeat(2, 0)
    heads = np.einsum("hrd,hre->hde", query, key)
    for form, at in [(heads.sum(0), None), (heads[3], 3)]:
        rows, columns = np.linalg.norm(form, axis=1), np.linalg.norm(form, axis=0)
        expected = {
            "norm": np.linalg.norm(form),
            "row_spread": rows.std(ddof=1) / rows.mean(),
            "column_spread": columns.std(ddof=1) / columns.mean(),
            "dominance": np.log(rows.std(ddof=1) / rows.mean() / (columns.std(ddof=1) / columns.mean())),
            "self_attending": np.trace(form) / (np.sqrt(np.linalg.matrix_rank(form)) * np.linalg.norm(form)),
        }
        for name, value in expected.items():
            assert (row[name][1] if at is None else row[f"head_{name}"][1][at]) == pytest.approx(value, rel=1e-6)


FREQUENCIES = 10_000.0 ** (-np.arange(4) / 4)  # of LLaMA, for a head of size 8


def average_symmetry(query: Any, key: Any) -> float:
    """Return s̄ of a layer form from the dense forms at 4,000 offsets; query, key: [H, r, d] as in q_proj and k_proj."""
    numerator = denominator = 0.0
    first, second = key[:, :4], key[:, 4:]  # the two dimensions of each pair
    for angle in np.outer(np.arange(1, 4001), FREQUENCIES)[..., None]:  # [4, 1]
        forward, backward = (
            np.einsum("hrd,hre->de", query, np.concatenate([cos * first - sin * second, sin * first + cos * second], 1))
            for cos, sin in ((np.cos(angle), np.sin(angle)), (np.cos(angle), -np.sin(angle)))
        )
        numerator += 2 * (forward * backward.T).sum()
        denominator += (forward**2).sum() + (backward**2).sum()
    return float(numerator / denominator)


def test_symmetry_under_rotation_is_the_average_over_offsets() -> None:
    model = llama()
    for layer in model.model.layers:  # between symmetric and not
        layer.self_attn.q_proj.weight.data[:16] += layer.self_attn.k_proj.weight.data
    layers = open_layers(LiveCheckpoint(model))
    rotary = RotaryPairs.halves(FREQUENCIES)
    layers = replace(layers, unread=tuple(replace(layer, rotary=rotary) for layer in layers.unread))
    live = layers.checkpoint
    assert isinstance(live, LiveCheckpoint)
    row = make_record(0, copy_to_cpu(measure_layers(layers.read_with(live.tensor)), [None, None]))
    saved = make_record(0, checkpoint_figures(layers, heads=True))
    attention = model.model.layers[0].self_attn
    query = attention.q_proj.weight.detach().double().numpy().reshape(4, 8, 32)
    key = attention.k_proj.weight.detach().double().numpy().reshape(2, 8, 32).repeat(2, 0)
    for record in (row, saved):
        assert record["symmetry_rope"][0] == pytest.approx(average_symmetry(query, key), abs=2e-3)
        assert record["head_symmetry_rope"][0][1] == pytest.approx(average_symmetry(query[1:2], key[1:2]), abs=2e-3)
        np.testing.assert_allclose(record["head_symmetry_rope"], row["head_symmetry_rope"], atol=1e-6)
    assert abs(row["symmetry_rope"][0] - row["symmetry"][0]) > 0.01
    with_bert = Monitor()(0, bert())
    assert with_bert is not None and "symmetry_rope" not in with_bert and "head_symmetry_rope" not in with_bert


def test_cross_attention_attends_to_other_tokens() -> None:
    row = Monitor()(0, FAMILIES["t5"]())
    assert row is not None
    for stack, tau, heads in zip(row["stack"], row["self_attending"], row["head_self_attending"], strict=True):
        assert (tau is None) == (heads == [None] * 4) == (stack == "cross")


class LowRank(torch.nn.Linear):  # type: ignore[misc]
    """A projection with a low-rank term in the weights themselves."""

    def __init__(self, base: Any) -> None:
        super().__init__(base.in_features, base.out_features)
        self.load_state_dict(base.state_dict())
        self.lora_A = torch.nn.Parameter(torch.randn(2, base.in_features) * 0.1)
        self.lora_B = torch.nn.Parameter(torch.randn(base.out_features, 2) * 0.1)
        self.scaling = 1.5
        self.merged = False


def test_low_rank_terms_are_added_to_the_weights() -> None:
    torch.manual_seed(0)
    model = bert()
    before = Monitor()(0, model)
    for layer in model.bert.encoder.layer:
        layer.attention.self.query = LowRank(layer.attention.self.query)
    row = Monitor()(0, model)
    assert row is not None and before is not None and row["symmetry"] != before["symmetry"]
    merged = bert()
    for adapted, plain in zip(model.bert.encoder.layer, merged.bert.encoder.layer, strict=True):
        query = adapted.attention.self.query
        plain.attention.self.query.weight.data += query.scaling * query.lora_B.data @ query.lora_A.data
    assert difference_when_saved(row, merged) <= 1e-6


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_peft_adapters_are_added_to_the_weights(family: str, dora: bool) -> None:
    import peft

    targets = {"bert": ["query", "key"], "gpt2": ["c_attn"], "llama": ["q_proj"]}
    torch.manual_seed(0)
    base = FAMILIES[family]().double()  # so that merging has no visible rounding error
    config = peft.LoraConfig(
        r=3, lora_alpha=7, target_modules=targets[family], init_lora_weights=False, use_dora=dora,
        fan_in_fan_out=family == "gpt2",
    )  # fmt: skip
    model = peft.get_peft_model(copy.deepcopy(base), config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_magnitude_vector" in name:  # at first the norms of the weights, so that DoRA changes nothing
                value.mul_(torch.linspace(0.5, 2, len(value)))
    row = Monitor()(0, model, make_batch(base))
    plain = Monitor()(0, base)
    assert row is not None and plain is not None
    assert row["symmetry"] != plain["symmetry"] and len(row["max_logit"]) == 2
    assert difference_when_saved(row, model.merge_and_unload()) <= 1e-6


@pytest.mark.parametrize("first_dora", [False, True])
def test_dora_beside_another_active_adapter_is_added_as_the_layer_does(first_dora: bool) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    options = {"r": 3, "target_modules": ["query", "key"], "init_lora_weights": False}
    model = peft.get_peft_model(bert().double(), peft.LoraConfig(**options, use_dora=first_dora))
    model.add_adapter("second", peft.LoraConfig(**options, use_dora=True))
    model.base_model.set_adapter(["default", "second"])
    row = Monitor()(0, model)
    assert row is not None
    assert difference_when_saved(row, model.merge_and_unload(adapter_names=["default", "second"])) <= 1e-6


def test_merged_and_disabled_adapters_are_scored_as_the_layer_uses_them() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["query", "key"], init_lora_weights=False)
    plain = Monitor(every=1)(1, bert())
    model = peft.get_peft_model(bert(), config)
    added = Monitor(every=1)(1, model)
    assert added["symmetry"] != plain["symmetry"]
    model.merge_adapter()
    assert Monitor(every=1)(1, model)["symmetry"] == pytest.approx(added["symmetry"], abs=1e-6)
    model.unmerge_adapter()
    with model.disable_adapter():
        assert Monitor(every=1)(1, model)["symmetry"] == pytest.approx(plain["symmetry"], abs=1e-6)


def test_parametrised_weights_are_evaluated() -> None:
    model = bert()
    torch.nn.utils.parametrizations.weight_norm(model.bert.encoder.layer[0].attention.self.query)
    model.bert.encoder.layer[0].attention.self.query.parametrizations.weight.original0.data *= 2
    row, plain = Monitor()(0, model), Monitor()(0, bert())
    assert row is not None and plain is not None
    assert row["norm"][0] == pytest.approx(2 * plain["norm"][0], rel=1e-6)


def test_a_zero_form_has_no_score() -> None:
    model = bert()
    model.bert.encoder.layer[1].attention.self.key.weight.data.zero_()
    row = Monitor()(0, model)
    assert row is not None
    assert row["symmetry"][1] is None and row["directionality"][1] is None and row["norm"][1] == 0
    assert row["symmetry"][0] is not None and row["head_symmetry"][1] == [None] * 4


@pytest.mark.parametrize("scale", [1e-30, 1e-100, 1e-300, 1e100])
def test_float64_weights_whose_squares_underflow_or_overflow_are_scored(scale: float) -> None:
    model = llama().double()
    expected = Monitor()(0, model)
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.weight.data *= scale
    row = Monitor()(0, model)
    assert row is not None and expected is not None
    for name in ("symmetry", "directionality", "row_spread", "column_spread"):
        assert row[name] == pytest.approx(expected[name], abs=1e-6)
        np.testing.assert_allclose(row[f"head_{name}"], expected[f"head_{name}"], atol=1e-6)
