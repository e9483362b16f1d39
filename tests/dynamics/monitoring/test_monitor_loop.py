"""What a plain loop gives a Monitor: steps of every kind, loggers of every kind."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo.dynamics.monitoring import largest_logits as monitor_logits  # noqa: E402
from attngeo.dynamics.monitoring.monitor import Monitor  # noqa: E402
from attngeo.dynamics.monitoring.records import read_records  # noqa: E402
from attngeo.errors import InputError  # noqa: E402
from tests.dynamics.monitoring.monitored import tokens  # noqa: E402
from tests.weights.tiny_models import bert  # noqa: E402


def test_steps_of_numpy_and_torch(tmp_path: Path) -> None:
    path, model = tmp_path / "run.jsonl", bert()
    monitor = Monitor(path, every=2)
    for step in np.arange(3):
        monitor(step, model)
    monitor.measure(torch.tensor(5), model)
    assert [row["step"] for row in read_records(path)] == [0, 2, 5]  # whole numbers, or the next run could not go on
    with pytest.raises(InputError, match=r"step is 6\.0, a whole number expected"):
        monitor(6.0, model)  # type: ignore[arg-type]


@pytest.mark.parametrize("every", [0, 1.5, "5", True])
def test_what_is_no_number_of_steps(every: Any) -> None:
    with pytest.raises(InputError, match=f"every is {every!r} and rows is 8, positive whole numbers expected"):
        Monitor(every=every)


class Stepped:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        self.calls.append((values, step))


class Plain(Stepped):
    def log(self, values: dict[str, float], start_time: float | None = None) -> None:  # type: ignore[override]
        assert start_time is None  # a Trainer's second argument is no step
        self.calls.append((values, None))


class Positional(Stepped):
    def log(self, values: dict[str, float], at: int) -> None:  # type: ignore[override]
        self.calls.append((values, at))


@pytest.mark.parametrize("kind", [Stepped, Plain, Positional])
def test_loggers_of_every_signature(kind: type[Stepped]) -> None:
    logger = kind()
    row = Monitor(logger=logger, every=7)(14, bert(), {"input_ids": tokens()})
    assert row is not None
    ((values, step),) = logger.calls
    assert step == (None if kind is Plain else 14) and values.get("step", 14) == 14
    assert values["attngeo/encoder/L1/symmetry"] == row["symmetry"][1]
    assert values["attngeo/encoder/L1H3/directionality"] == row["head_directionality"][1][3]
    assert values["attngeo/encoder/L0/max_logit"] == row["max_logit"][0]


class Down(Stepped):
    def log(self, values: dict[str, float], step: int | None = None) -> None:
        raise ConnectionError("the service is down")


@pytest.mark.parametrize(
    ("logger", "problem"), [(Down(), "the service is down"), (logging.getLogger("a"), "missing 1 required .* 'msg'")]
)
def test_a_logger_that_fails_does_not_stop_training(tmp_path: Path, logger: Any, problem: str) -> None:
    monitor = Monitor(tmp_path / "run.jsonl", every=1, logger=logger)
    with pytest.warns(UserWarning, match=rf"attngeo.Monitor: the logger fails \(.*{problem}.*\)"):
        monitor(0, bert())
    monitor(1, bert())  # said once
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 2


def test_a_logger_that_cannot_log() -> None:
    with pytest.raises(InputError, match=r"no .log\(dict, step\)"):
        Monitor(logger=3)


@pytest.mark.parametrize("causal", [False, True])
def test_logits_are_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    query, key = torch.randn(2, 3, 4, 9, 5, generator=torch.Generator().manual_seed(0))
    logits = query @ key.mT / 5**0.5
    expected = (logits.tril() if causal else logits).abs().amax((0, 2, 3))
    for together in (1, 3 * 4 * 9 * 2, 2**26):
        monkeypatch.setattr(monitor_logits, "LOGITS_AT_ONCE", together)
        assert torch.allclose(monitor_logits.largest_logit_per_head(query, key, key, is_causal=causal), expected, rtol=1e-6)


def test_a_layer_used_twice_has_the_largest_of_both() -> None:
    recorder = monitor_logits.LogitRecorder()
    recorder.calls = [(0, torch.tensor([3.0, 1.0])), (1, torch.tensor([9.0, 9.0])), (0, torch.tensor([2.0, 5.0]))]
    first, second = recorder.by_layer(2)
    assert first.tolist() == [3, 5] and second.tolist() == [9, 9]


def test_adapters_that_are_merged_or_off_count_as_the_layer_has_them() -> None:
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
