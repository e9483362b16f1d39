"""Monitor in a plain loop: its records and logits, that training is not affected, loggers, and models it refuses."""

from __future__ import annotations

import copy
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers as tf

from attngeo import capture, track
from attngeo.errors import InputError, LayoutError
from attngeo.training.monitoring.monitor import Monitor
from tests.training.monitoring.record_checks import (
    difference,
    difference_when_saved,
    make_batch,
    random_tokens,
    recorded_steps,
)
from tests.weights.tiny_models import FAMILIES, bert, gpt2


@pytest.fixture(autouse=True)
def no_progress_bars() -> None:
    tf.utils.logging.disable_progress_bar()


def record(model: Any, batch: Any = None, **options: Any) -> Any:
    """Return the record of a model at step 0."""
    return Monitor(**options)(0, model, batch)


# ---- a run


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
    assert recorded_steps(path) == [0, 10, 20, 30] and not (tmp_path / "run.jsonl.old").exists()
    for _ in range(2):  # two other runs of the same name: both older files are kept
        Monitor(path, every=10)(0, model)
    found = [recorded_steps(tmp_path / f"run.jsonl{ending}") for ending in ("", ".old", ".old2")]
    assert found == [[0], [0, 10, 20, 30], [0]]


def test_a_loop_that_goes_back_drops_the_records_of_later_steps(tmp_path: Path) -> None:
    monitor, model = Monitor(tmp_path / "run.jsonl", every=10), bert()
    for step in (*range(41), *range(25, 31)):  # back to a checkpoint of step 25
        monitor(step, model)
    assert [row["step"] for row in monitor.records] == [0, 10, 20, 30]
    for step in range(11):  # another run
        monitor(step, model)
    assert [row["step"] for row in monitor.records] == [0, 10]
    assert recorded_steps(tmp_path / "run.jsonl") == [0, 10]
    assert recorded_steps(tmp_path / "run.jsonl.old") == [0, 10, 20, 30]


def test_modules_that_are_replaced_during_the_run_are_measured() -> None:
    """Adapters are put into a model, or merged into new layers, while it is trained."""
    monitor, model = Monitor(every=1), bert()
    before = monitor(0, model)
    attention = model.bert.encoder.layer[0].attention.self
    attention.query = torch.nn.Linear(*attention.query.weight.shape)
    found, expected = monitor(1, model), Monitor(every=1)(1, model)
    assert found == expected and before is not None and found is not None
    assert found["symmetry"][0] != before["symmetry"][0] and found["symmetry"][1:] == before["symmetry"][1:]


def test_a_file_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    path, model = tmp_path / "run.jsonl", gpt2()
    monitor = Monitor(path, every=1)
    monitor(0, model)
    os.remove(path)
    path.mkdir()
    with pytest.warns(UserWarning, match="cannot be written"):
        assert monitor(1, model) is not None
    assert [row["step"] for row in monitor.records] == [0, 1]


def test_a_compiled_model_is_scored_without_compiling_again() -> None:
    from torch._dynamo.utils import counters

    plain = bert()
    expected = record(plain, {"input_ids": random_tokens()})
    compiled = torch.compile(plain, backend="eager")
    compiled(input_ids=random_tokens(8))
    counters.clear()
    assert record(compiled, {"input_ids": random_tokens()}) == expected
    assert not counters["frames"]
    plain.bert.encoder.layer[0] = torch.compile(plain.bert.encoder.layer[0], backend="eager")  # one region only
    assert record(plain, {"input_ids": random_tokens()}) == expected


def test_models_and_options_that_cannot_be_monitored_are_refused() -> None:
    with torch.device("meta"):
        empty = bert()
    for model, message in ((empty, "query.weight: has no values yet"), (torch.nn.Linear(3, 3), "no self-attention")):
        with pytest.raises(LayoutError, match=message):
            record(model)
    with pytest.raises(InputError, match="every is 0, expected a whole number from 1 on"):
        Monitor(every=0)


# ---- loggers


class KeywordLogger:
    """Takes a step by keyword."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        self.calls.append((values, step))


class LoggerWithoutStep(KeywordLogger):
    """Takes no step; its second argument is that of `Trainer.log`."""

    def log(self, values: dict[str, float], start_time: float | None = None) -> None:  # type: ignore[override]
        assert start_time is None
        self.calls.append((values, None))


@pytest.mark.parametrize("kind", [KeywordLogger, LoggerWithoutStep])
def test_loggers_with_and_without_a_step_get_the_values_and_the_step(kind: type[KeywordLogger]) -> None:
    logger = kind()
    row = Monitor(logger=logger, every=7)(14, bert(), {"input_ids": random_tokens()})
    assert row is not None
    ((values, step),) = logger.calls
    assert step == (None if kind is LoggerWithoutStep else 14) and values.get("step", 14) == 14
    assert values["attngeo/encoder/L1/symmetry"] == row["symmetry"][1]
    assert values["attngeo/encoder/L1H3/directionality"] == row["head_directionality"][1][3]
    assert values["attngeo/encoder/L0/max_logit"] == row["max_logit"][0]


def test_a_logger_that_fails_does_not_stop_training(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path / "run.jsonl", every=1, logger=logging.getLogger("a"))  # its log takes other arguments
    with pytest.warns(UserWarning, match=r"attngeo.Monitor: the logger fails \(.*missing 1 required .* 'msg'"):
        monitor(0, bert())
    monitor(1, bert())  # the warning is not repeated
    assert recorded_steps(tmp_path / "run.jsonl") == [0, 1]


# ---- scores are those of the saved checkpoint: with adapters, gains and parametrisations


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_the_saved_checkpoint(family: str, tmp_path: Path) -> None:
    """Those of `attngeo.score` are compared with averages over offsets and with dense forms in its own tests."""
    model = FAMILIES[family]()
    row = record(model)
    assert "max_logit" not in row and ("symmetry_rope" in row) == (family in ("llama", "neox"))
    assert difference_when_saved(row, model) <= 1e-6
    model.save_pretrained(tmp_path / "step-0")
    (tracked,) = track(tmp_path)
    assert difference(tracked, tmp_path / "step-0") <= 1e-6
    for found in (row, tracked):
        for stack, tau, heads in zip(
            found["stack"], found["self_attending"], found["head_self_attending"], strict=True
        ):
            assert (tau is None) == (heads == [None] * 4) == (stack == "cross")  # which attends to other tokens


SMALL = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
LATENT = {
    "num_hidden_layers": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4, "q_lora_rank": 16,
    "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "moe_intermediate_size": 8,
    "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
NORMALISED = {
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8)),
    "deepseek": lambda: tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(**SMALL | LATENT)),
}


@pytest.mark.parametrize("kind", NORMALISED)
def test_scores_include_qk_norm_gains_and_latent_products(kind: str) -> None:
    torch.manual_seed(0)
    model = NORMALISED[kind]().double()
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.5, 2.0)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    row = record(model, {"input_ids": random_tokens()})
    assert row["max_logit"][0] > 0
    assert difference_when_saved(row, model) <= 1e-6
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


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
    model, merged = bert(), bert()
    before = record(model)
    for layer, plain in zip(model.bert.encoder.layer, merged.bert.encoder.layer, strict=True):
        query = layer.attention.self.query = LowRank(layer.attention.self.query)
        plain.attention.self.query.weight.data += query.scaling * query.lora_B.data @ query.lora_A.data
    row = record(model)
    assert row["symmetry"] != before["symmetry"]
    assert difference_when_saved(row, merged) <= 1e-6


@pytest.mark.parametrize(
    ("family", "targets", "dora"),
    [
        ("bert", ["query", "key"], True),
        ("gpt2", ["c_attn"], True),  # stored [in, out]
        ("llama", ["q_proj"], False),
    ],
)
def test_peft_adapters_are_added_to_the_weights(family: str, targets: list[str], dora: bool) -> None:
    torch.manual_seed(0)
    base = FAMILIES[family]().double()  # so that merging has no visible rounding error
    config = peft.LoraConfig(
        r=3, lora_alpha=7, target_modules=targets, init_lora_weights=False, use_dora=dora,
        fan_in_fan_out=family == "gpt2",
    )  # fmt: skip
    model = peft.get_peft_model(copy.deepcopy(base), config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_magnitude_vector" in name:  # at first the norms of the weights, so that DoRA changes nothing
                value.mul_(torch.linspace(0.5, 2, len(value)))
    row = record(model, make_batch(base))
    assert row["symmetry"] != record(base)["symmetry"] and len(row["max_logit"]) == 2
    assert difference_when_saved(row, model.merge_and_unload()) <= 1e-6


def test_dora_beside_another_active_adapter_is_added_as_the_layer_does() -> None:
    torch.manual_seed(0)
    options = {"r": 3, "target_modules": ["query", "key"], "init_lora_weights": False}
    model = peft.get_peft_model(bert().double(), peft.LoraConfig(**options, use_dora=False))
    model.add_adapter("second", peft.LoraConfig(**options, use_dora=True))
    model.base_model.set_adapter(["default", "second"])
    row = record(model)
    assert difference_when_saved(row, model.merge_and_unload(adapter_names=["default", "second"])) <= 1e-6


def test_merged_and_disabled_adapters_are_scored_as_the_layer_uses_them() -> None:
    config = peft.LoraConfig(r=4, target_modules=["query", "key"], init_lora_weights=False)
    plain = record(bert())["symmetry"]
    model = peft.get_peft_model(bert(), config)
    added = record(model)["symmetry"]
    assert added != plain
    model.merge_adapter()
    assert record(model)["symmetry"] == pytest.approx(added, abs=1e-6)
    model.unmerge_adapter()
    with model.disable_adapter():
        assert record(model)["symmetry"] == pytest.approx(plain, abs=1e-6)


def test_parametrised_weights_are_evaluated() -> None:
    model = bert()
    torch.nn.utils.parametrizations.weight_norm(model.bert.encoder.layer[0].attention.self.query)
    model.bert.encoder.layer[0].attention.self.query.parametrizations.weight.original0.data *= 2
    assert record(model)["norm"][0] == pytest.approx(2 * record(bert())["norm"][0], rel=1e-6)


# ---- the largest logits


@pytest.mark.parametrize(
    ("family", "at_once"), [*((family, 2**26) for family in FAMILIES), ("gpt2", 4 * 9), ("t5", 4 * 9)]
)  # computed at once, or in chunks of few rows
def test_logits_are_those_the_model_computes(family: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotary embedding, grouped keys, T5's bias and scale are included; `capture` computes the same in another way."""
    monkeypatch.setattr("attngeo.training.monitoring.measure.LOGITS_AT_ONCE", at_once)
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


def test_a_layer_that_runs_twice_has_the_largest_logit_of_both() -> None:
    """Each call alone is that of a model with one layer, which reads what the first call wrote."""
    torch.manual_seed(0)
    config = tf.AlbertConfig(**SMALL | {"num_hidden_layers": 1}, embedding_size=32)
    model = tf.AlbertModel(config).eval()
    for weight in model.parameters():
        weight.data.mul_(3.0)
    model.encoder.embedding_hidden_mapping_in.weight.data.mul_(2.9)  # so that either call has the larger logits
    ids = random_tokens()
    x = model.encoder.embedding_hidden_mapping_in(model.embeddings(ids))
    logits = []
    layer = model.encoder.albert_layer_groups[0].albert_layers[0]
    for _ in range(2):
        query, key = (
            getattr(layer.attention, side)(x).unflatten(-1, (4, 8)).movedim(2, 1) for side in ("query", "key")
        )
        logits.append((query @ key.mT / 8**0.5).abs().amax((0, 2, 3)))
        x = layer(x, attention_mask=None)
        x = x[0] if isinstance(x, tuple) else x
    model.config.num_hidden_layers = 2
    assert record(model, ids)["head_max_logit"][0] == pytest.approx(logits[0].maximum(logits[1]).tolist(), rel=1e-4)
    assert (logits[0] > logits[1]).any() and (logits[1] > logits[0]).any()


def test_logits_of_padding_keys_are_left_out() -> None:
    ids = random_tokens(2)
    mask = torch.ones_like(ids)
    mask[:, 7:] = 0
    padded = record(bert(), probe={"input_ids": ids, "attention_mask": mask})["max_logit"]
    # Padding keys are left out; padding queries attend like the others.
    np.testing.assert_array_less(np.array(record(bert(), probe={"input_ids": ids[:, :7]})["max_logit"]) - 1e-7, padded)
    assert padded != record(bert(), probe={"input_ids": ids})["max_logit"]


def test_every_attention_implementation_gives_the_same_logits_of_the_first_rows() -> None:
    ids = random_tokens(6)
    model = bert()
    expected = record(model, {"input_ids": ids[:2]})
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        assert record(model, {"input_ids": ids}, rows=2) == expected
        assert model.config._attn_implementation == implementation
    assert expected["max_logit"] != record(model, {"input_ids": ids})["max_logit"]


def test_the_model_of_attngeo_pretrain_is_monitored_too() -> None:
    """Its layers are functions, so that no module tells which layer a logit belongs to."""
    from attngeo.training.pretraining.architectures import Bert, Shape
    from attngeo.training.pretraining.measure import form_scores, largest_logits

    model = Bert(Shape(3, 32, 4, 64, 60, 12, causal=True))
    model.initialise(0)
    row = record(model, random_tokens())
    np.testing.assert_allclose(row["head_symmetry"], form_scores(model)["head_symmetry"], rtol=1e-4)
    np.testing.assert_allclose(row["max_logit"], largest_logits(model, random_tokens()), rtol=1e-4)


def test_a_batch_that_does_not_fit_the_model_costs_only_the_logits() -> None:
    monitor = Monitor(every=1)
    with pytest.warns(UserWarning, match="logits could not be measured"):
        row = monitor(0, bert(), {"pixels": random_tokens()})
    assert row is not None and row["symmetry"][0] is not None and "max_logit" not in row
    monitor(1, bert(), {"pixels": random_tokens()})  # the warning is not repeated
