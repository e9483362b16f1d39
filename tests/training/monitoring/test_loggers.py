"""Loggers of a Monitor: every signature of `log`, and loggers that fail."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attngeo.errors import InputError  # noqa: E402
from attngeo.training.monitoring.monitor import Monitor  # noqa: E402
from tests.training.monitoring.record_checks import random_tokens  # noqa: E402
from tests.weights.tiny_models import bert  # noqa: E402


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
