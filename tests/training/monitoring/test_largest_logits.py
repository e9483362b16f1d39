"""The largest attention logits: those that the model computes, over the pairs that its mask allows."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo.training.monitoring import largest_logits  # noqa: E402
from attngeo.training.monitoring.monitor import Monitor  # noqa: E402
from tests.training.monitoring.record_checks import make_batch, random_tokens  # noqa: E402
from tests.weights.tiny_models import FAMILIES, bert  # noqa: E402


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


@pytest.mark.parametrize("causal", [False, True])
def test_logits_computed_in_chunks_are_the_same(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    query, key = torch.randn(2, 3, 4, 9, 5, generator=torch.Generator().manual_seed(0))
    logits = query @ key.mT / 5**0.5
    expected = (logits.tril() if causal else logits).abs().amax((0, 2, 3))
    for at_once in (1, 3 * 4 * 9 * 2, 2**26):
        monkeypatch.setattr(largest_logits, "LOGITS_AT_ONCE", at_once)
        assert torch.allclose(
            largest_logits.largest_logit_per_head(query, key, key, is_causal=causal), expected, rtol=1e-6
        )


def test_a_layer_that_runs_twice_has_the_largest_logit_of_both() -> None:
    recorder = largest_logits.LogitRecorder()
    recorder.calls = [(0, torch.tensor([3.0, 1.0])), (1, torch.tensor([9.0, 9.0])), (0, torch.tensor([2.0, 5.0]))]
    first, second = recorder.by_layer(2)
    assert first.tolist() == [3, 5] and second.tolist() == [9, 9]


def test_a_batch_that_does_not_fit_the_model_costs_only_the_logits() -> None:
    monitor = Monitor(every=1)
    with pytest.warns(UserWarning, match="logits could not be measured"):
        row = monitor(0, bert(), {"pixels": random_tokens()})
    assert row is not None and row["symmetry"][0] is not None and "max_logit" not in row
    monitor(1, bert(), {"pixels": random_tokens()})  # the warning is not repeated
