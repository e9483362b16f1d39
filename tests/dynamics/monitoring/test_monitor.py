"""Monitor in a plain loop: its scores, its logits, its records, and that training is not affected."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo.dynamics.monitoring.monitor import Monitor  # noqa: E402
from attngeo.errors import InputError, LayoutError  # noqa: E402
from tests.dynamics.monitoring.record_checks import difference_when_saved, make_batch, random_tokens  # noqa: E402
from tests.weights.tiny_models import FAMILIES, bert, gpt2, llama  # noqa: E402


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


def tiny_qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=40))  # fmt: skip


def tiny_deepseek() -> Any:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    return DeepseekV3ForCausalLM(DeepseekV3Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=1, first_k_dense_replace=1, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
        intermediate_size=40, moe_intermediate_size=8, n_routed_experts=2, num_experts_per_tok=1, n_group=1,
        topk_group=1))  # fmt: skip


@pytest.mark.parametrize("make", [tiny_qwen3, tiny_deepseek])
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


def test_norms_and_their_spreads_are_those_of_the_dense_form() -> None:
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
        }
        for name, value in expected.items():
            assert (row[name][1] if at is None else row[f"head_{name}"][1][at]) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_the_model_computes(family: str) -> None:
    """Rotary embedding, grouped keys, T5's bias and scale are included; `capture` computes the same in another way."""
    from attngeo import capture

    model = FAMILIES[family]()
    batch = make_batch(model, rows=2)
    row = Monitor(probe=batch)(0, model.train())
    assert row is not None and model.training
    single = {name: part for name, part in batch.items() if name != "labels"}
    for stack in set(row["stack"]) - {"cross"}:
        layers = [index for index, name in enumerate(row["stack"]) if name == stack]
        expected = np.zeros(sum(len(row["head_max_logit"][index]) for index in layers))
        for one in range(2):
            tensor = capture(model, {name: part[one : one + 1] for name, part in single.items()}, stack=stack)
            allowed = 1 if tensor.mask is None else tensor.mask[..., None]
            expected = np.maximum(expected, (np.abs(tensor.values) * allowed).max((0, 1)))
        measured = np.concatenate([row["head_max_logit"][index] for index in layers])
        np.testing.assert_allclose(measured, expected, rtol=1e-5)
        assert [row["max_logit"][index] for index in layers] == [max(row["head_max_logit"][index]) for index in layers]


def test_logits_of_padding_keys_are_left_out() -> None:
    model = bert()
    ids = random_tokens(2)
    mask = torch.ones_like(ids)
    mask[:, 7:] = 0
    padded = Monitor(probe={"input_ids": ids, "attention_mask": mask})(0, model)
    cut = Monitor(probe={"input_ids": ids[:, :7]})(0, model)
    whole = Monitor(probe={"input_ids": ids})(0, model)
    assert padded and cut and whole
    # Padding keys are left out; padding queries attend like the others.
    np.testing.assert_array_less(np.array(cut["max_logit"]) - 1e-7, padded["max_logit"])
    assert padded["max_logit"] != whole["max_logit"]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_every_attention_implementation_gives_the_same_logits(implementation: str) -> None:
    model = bert()
    model.set_attn_implementation(implementation)
    row = Monitor(probe={"input_ids": random_tokens()})(0, model)
    assert row is not None and model.config._attn_implementation == implementation
    model.set_attn_implementation("sdpa")
    assert row == Monitor(probe={"input_ids": random_tokens()})(0, model)


def test_logits_are_measured_on_the_first_rows_only() -> None:
    ids = random_tokens(6)
    few = Monitor(rows=2)(0, bert(), {"input_ids": ids})
    assert few is not None and few == Monitor()(0, bert(), {"input_ids": ids[:2]})
    assert few["max_logit"] != Monitor()(0, bert(), {"input_ids": ids})["max_logit"]


def train_for_some_steps(model: Any, monitor: Monitor | None, steps: int = 6) -> Any:
    """Train with dropout and return a copy of the weights."""
    torch.manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for step in range(steps):
        ids = torch.randint(3, 60, (4, 12))
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        if monitor is not None:
            monitor(step, model, {"input_ids": ids, "labels": ids})
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_monitored_training_gives_the_same_weights(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "run.jsonl", every=2)
    monitored = train_for_some_steps(bert(), monitor)
    plain = train_for_some_steps(bert(), None)  # dropout is 0.1, so the random state matters
    assert all(torch.equal(monitored[name], plain[name]) for name in plain)
    assert [row["step"] for row in monitor.records] == [0, 2, 4]
    assert monitor.records[0]["symmetry"] != monitor.records[-1]["symmetry"]
    assert [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()] == monitor.records


def test_a_continued_run_drops_the_records_of_later_steps(tmp_path: Path) -> None:
    path, model = tmp_path / "run.jsonl", bert()
    first = Monitor(path, every=10)
    for step in range(41):
        first(step, model)
    with open(path, "a") as file:
        file.write('{"step": 50, "symm')  # killed while writing
    again = Monitor(path, every=10)
    again(25, model)
    assert [row["step"] for row in again.records] == [0, 10, 20]
    again(30, model)
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == [0, 10, 20, 30] and not (tmp_path / "run.jsonl.old").exists()
    fresh = Monitor(path, every=10)  # another run of the same name
    fresh(0, model)
    assert len(path.read_text().splitlines()) == 1
    assert len((tmp_path / "run.jsonl.old").read_text().splitlines()) == 4
    Monitor(path, every=10)(0, model)  # and a third: both older files are kept
    assert len((tmp_path / "run.jsonl.old").read_text().splitlines()) == 4
    assert len((tmp_path / "run.jsonl.old2").read_text().splitlines()) == 1


def test_a_compiled_model_is_scored_without_compiling_again() -> None:
    from torch._dynamo.utils import counters

    plain = bert()
    expected = Monitor()(0, plain, {"input_ids": random_tokens()})
    compiled = torch.compile(plain, backend="eager")
    compiled(input_ids=random_tokens(8))
    counters.clear()
    assert Monitor()(0, compiled, {"input_ids": random_tokens()}) == expected
    assert not counters["frames"]
    plain.bert.encoder.layer[0] = torch.compile(plain.bert.encoder.layer[0], backend="eager")  # one region only
    assert Monitor()(0, plain, {"input_ids": random_tokens()}) == expected


def test_the_model_of_attngeo_pretrain_is_monitored_too() -> None:
    from attngeo.dynamics.pretraining.bert import Bert, Shape
    from attngeo.dynamics.pretraining.measure import form_scores, largest_logits

    model = Bert(Shape(3, 32, 4, 64, 60, 12, causal=True))
    model.initialise(0)
    row = Monitor()(0, model, random_tokens())
    assert row is not None
    expected = form_scores(model)
    np.testing.assert_allclose(row["head_symmetry"], expected["head_symmetry"], rtol=1e-4)
    np.testing.assert_allclose(row["max_logit"], largest_logits(model, random_tokens()), rtol=1e-4)


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
    row = Monitor()(0, model, make_batch(base))
    plain = Monitor()(0, base)
    assert row is not None and plain is not None
    assert row["symmetry"] != plain["symmetry"] and len(row["max_logit"]) == 2
    assert difference_when_saved(row, model.merge_and_unload()) <= 1e-6


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


def test_models_that_cannot_be_monitored_are_refused() -> None:
    from transformers import BertConfig, BertForMaskedLM

    with torch.device("meta"):
        empty = BertForMaskedLM(BertConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=4))
    with pytest.raises(LayoutError, match=r"query.weight: has no values yet"):
        Monitor()(0, empty)
    with pytest.raises(LayoutError, match="no self-attention"):
        Monitor()(0, torch.nn.Linear(3, 3))
    with pytest.raises(InputError, match="every is 0"):
        Monitor(every=0)


def test_a_batch_that_does_not_fit_the_model_costs_only_the_logits() -> None:
    monitor = Monitor(every=1)
    with pytest.warns(UserWarning, match="logits could not be measured"):
        row = monitor(0, bert(), {"pixels": random_tokens()})
    assert row is not None and row["symmetry"][0] is not None and "max_logit" not in row
    monitor(1, bert(), {"pixels": random_tokens()})  # the warning is not repeated


def test_a_file_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    path, model = tmp_path / "run.jsonl", gpt2()
    monitor = Monitor(path, every=1)
    monitor(0, model)
    os.remove(path)
    path.mkdir()
    with pytest.warns(UserWarning, match="cannot be written"):
        assert monitor(1, model) is not None
    assert [row["step"] for row in monitor.records] == [0, 1]


def test_the_command_line_and_track_import_neither_torch_nor_transformers() -> None:
    from transformers import TrainerCallback

    assert isinstance(Monitor(), TrainerCallback)
    code = (
        "import sys, attngeo.cli, attngeo.dynamics.monitoring.track\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
