"""`watch`: figures of the monitor in the trackers of transformers' Trainer, read back from what those wrote."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import attngeo  # noqa: E402
from attngeo.errors import InputError  # noqa: E402
from attngeo.training.monitoring.monitor import Monitor  # noqa: E402
from tests.training.monitoring.test_monitor_trainer import RandomTexts, losses, mask_randomly  # noqa: E402
from tests.weights.tiny_models import bert  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
MEDIAN = "attngeo/encoder/symmetry/median"


@pytest.fixture(autouse=True)
def no_progress_bars() -> Any:
    transformers.utils.logging.disable_progress_bar()


def make_trainer(folder: Path, **settings: Any) -> Any:
    usual = {"max_steps": 6, "save_strategy": "no", "report_to": [], "logging_steps": 1, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=4, use_cpu=True, seed=3, dataloader_pin_memory=False,
        **(usual | settings),
    )  # fmt: skip
    return transformers.Trainer(bert(), arguments, train_dataset=RandomTexts(), data_collator=mask_randomly)


class Listener(transformers.TrainerCallback):  # type: ignore[misc]
    """A tracker that keeps what it is given."""

    def __init__(self) -> None:
        self.logs: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        assert not self.closed
        self.logs.append((state.global_step, dict(logs)))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.closed = True

    def figures(self) -> dict[int, float]:
        return {step: logs[MEDIAN] for step, logs in self.logs if MEDIAN in logs}


@pytest.mark.parametrize("logging_steps", [1, 5, 100])
def test_every_measured_step_is_reported_once_whatever_the_logging_steps(
    tmp_path: Path, logging_steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, listener = make_trainer(tmp_path / "a", logging_steps=logging_steps), Listener()
    trainer.add_callback(listener)
    monitor = attngeo.watch(trainer, every=2)
    trainer.train()
    expected = {row["step"]: statistics.median(row["symmetry"]) for row in monitor.records}
    assert list(expected) == [0, 2, 4, 6]
    assert listener.figures() == pytest.approx(expected)
    assert sum(MEDIAN in logs for _, logs in listener.logs) == 4
    if logging_steps == 1:  # in the same log as the loss
        assert all("loss" in logs for step, logs in listener.logs if MEDIAN in logs and step)
    assert "attngeo" not in capsys.readouterr().out  # trackers only, not the terminal
    plain = make_trainer(tmp_path / "b", logging_steps=logging_steps)
    plain.train()
    assert losses(trainer) == losses(plain)


def test_the_last_step_of_a_stopped_run_reaches_trackers_that_are_still_open(tmp_path: Path) -> None:
    class StopAtStep3(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 3

    trainer, listener = make_trainer(tmp_path, logging_steps=100), Listener()
    for callback in (listener, StopAtStep3()):
        trainer.add_callback(callback)
    attngeo.watch(trainer, every=2)
    trainer.train()
    assert sorted(listener.figures()) == [0, 2, 3]


def test_a_second_call_replaces_the_first(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    before = len(trainer.callback_handler.callbacks)
    first = attngeo.watch(trainer, every=1)
    attached = len(trainer.callback_handler.callbacks)
    second = attngeo.watch(trainer, every=2)
    callbacks = trainer.callback_handler.callbacks
    assert callbacks[0] is second and first not in callbacks
    assert len(callbacks) == attached == before + 1
    assert sum(isinstance(callback, Monitor) for callback in callbacks) == 1


def test_what_cannot_be_watched_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trainer: a int, expected a transformers Trainer"):
        attngeo.watch(3)  # type: ignore[arg-type]
    trainer = make_trainer(tmp_path)
    with pytest.raises(InputError, match="detail is 'all', expected 'stacks', 'layers' or 'heads'"):
        attngeo.watch(trainer, detail="all")  # type: ignore[arg-type]
    trainer.add_callback(Monitor())
    with pytest.raises(InputError, match="a Monitor is among its callbacks already"):
        attngeo.watch(trainer)


def test_a_tracker_that_fails_does_not_stop_training(tmp_path: Path) -> None:
    class Failing(Listener):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" not in logs and "train_loss" not in logs:
                raise ConnectionError("the service is down")

    trainer = make_trainer(tmp_path, max_steps=2)
    trainer.add_callback(Failing())
    monitor = attngeo.watch(trainer, every=1)
    with pytest.warns(UserWarning, match=r"attngeo.Monitor: Failing fails \(the service is down\)"):
        trainer.train()
    assert len(monitor.records) == 3


# ---- real trackers


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return name → step → value from the TensorBoard event files in `folder`."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def test_tensorboard_event_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    trainer = make_trainer(tmp_path, report_to=["tensorboard"], logging_steps=3)
    monitor = attngeo.watch(trainer, every=2, detail="heads")
    trainer.train()
    found = scalars(tmp_path / "events")
    assert list(found["train/loss"]) == [3, 6]
    for name in ("symmetry", "directionality", "dominance", "self_attending", "norm", "max_logit"):
        expected = {row["step"]: statistics.median(row[name]) for row in monitor.records}
        assert found[f"train/attngeo/encoder/{name}/median"] == pytest.approx(expected, rel=1e-6)
    for row in monitor.records:
        step = row["step"]
        assert found["train/attngeo/encoder/L1/symmetry"][step] == pytest.approx(row["symmetry"][1])
        assert found["train/attngeo/encoder/L1H3/dominance"][step] == pytest.approx(row["head_dominance"][1][3])
        assert found["train/attngeo/encoder/max_logit/max"][step] == pytest.approx(max(row["max_logit"]))


def test_an_sft_trainer_and_a_trackio_run_on_disk(tmp_path: Path) -> None:
    for library in ("trl", "trackio", "datasets"):
        pytest.importorskip(library)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRACKIO_"))},
        "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.training.monitoring.trackio_run", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [row["step"] for row in found["records"]] == [0, 1, 2, 3, 4]  # the second call of watch counts
    name = "train/attngeo/decoder/{}/median"
    for figure in ("symmetry", "dominance", "self_attending", "max_logit"):
        expected = {row["step"]: statistics.median(row[figure]) for row in found["records"]}
        logged = [log for log in found["logs"] if name.format(figure) in log]
        assert {log["train/global_step"]: log[name.format(figure)] for log in logged} == pytest.approx(expected)
        assert len(logged) == 5
    with_loss = [log for log in found["logs"] if "train/loss" in log]
    assert [log["train/global_step"] for log in with_loss] == [2, 4]
    assert all(name.format("symmetry") in log and "train/mean_token_accuracy" in log for log in with_loss)
