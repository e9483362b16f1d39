"""Monitor in a plain loop: kinds of steps and loggers; the largest logits of single attention calls."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo.dynamics.monitoring import largest_logits  # noqa: E402
from attngeo.dynamics.monitoring.monitor import Monitor  # noqa: E402
from attngeo.dynamics.monitoring.records import read_records  # noqa: E402
from attngeo.errors import InputError  # noqa: E402
from tests.dynamics.monitoring.record_checks import random_tokens  # noqa: E402
from tests.weights.tiny_models import bert  # noqa: E402


def test_steps_may_be_numpy_or_torch_numbers(tmp_path: Path) -> None:
    path, model = tmp_path / "run.jsonl", bert()
    monitor = Monitor(path, every=2)
    for step in np.arange(3):
        monitor(step, model)
    monitor.measure(torch.tensor(5), model)
    assert [row["step"] for row in read_records(path)] == [0, 2, 5]
    with pytest.raises(InputError, match=r"step is 6\.0, expected a whole number"):
        monitor(6.0, model)  # type: ignore[arg-type]


@pytest.mark.parametrize("every", [0, 1.5, "5", True])
def test_every_must_be_a_positive_whole_number(every: Any) -> None:
    with pytest.raises(InputError, match=f"every is {every!r} and rows is 8, expected positive whole numbers"):
        Monitor(every=every)


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


class PositionalLogger(KeywordLogger):
    """Takes a step by position, under another name."""

    def log(self, values: dict[str, float], at: int) -> None:  # type: ignore[override]
        self.calls.append((values, at))


@pytest.mark.parametrize("kind", [KeywordLogger, LoggerWithoutStep, PositionalLogger])
def test_loggers_of_every_signature_get_the_values_and_the_step(kind: type[KeywordLogger]) -> None:
    logger = kind()
    row = Monitor(logger=logger, every=7)(14, bert(), {"input_ids": random_tokens()})
    assert row is not None
    ((values, step),) = logger.calls
    assert step == (None if kind is LoggerWithoutStep else 14) and values.get("step", 14) == 14
    assert values["attngeo/encoder/L1/symmetry"] == row["symmetry"][1]
    assert values["attngeo/encoder/L1H3/directionality"] == row["head_directionality"][1][3]
    assert values["attngeo/encoder/L0/max_logit"] == row["max_logit"][0]


class FailingLogger(KeywordLogger):
    """Raises at each call."""

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        raise ConnectionError("the service is down")


@pytest.mark.parametrize(
    ("logger", "problem"),
    [(FailingLogger(), "the service is down"), (logging.getLogger("a"), "missing 1 required .* 'msg'")],
)
def test_a_logger_that_fails_does_not_stop_training(tmp_path: Path, logger: Any, problem: str) -> None:
    monitor = Monitor(tmp_path / "run.jsonl", every=1, logger=logger)
    with pytest.warns(UserWarning, match=rf"attngeo.Monitor: the logger fails \(.*{problem}.*\)"):
        monitor(0, bert())
    monitor(1, bert())  # the warning is not repeated
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 2


def test_an_object_without_a_log_method_is_refused() -> None:
    with pytest.raises(InputError, match=r"logger: a int has no method .log\(dict, step\)"):
        Monitor(logger=3)


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
