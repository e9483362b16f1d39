"""Monitor under transformers' Trainer: its records, resumed runs, figures in trackers, and unaffected training."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attngeo
from attngeo.errors import InputError
from attngeo.training.monitoring import track
from attngeo.training.monitoring.monitor import Monitor
from tests.training.monitoring.record_checks import difference, recorded_steps
from tests.weights.tiny_models import bert, llama

ROOT = Path(__file__).resolve().parents[3]
MEDIAN = "attngeo/encoder/symmetry/median"


class RandomTexts(torch.utils.data.Dataset):  # type: ignore[misc]
    """Rows of random tokens."""

    def __init__(self) -> None:
        self.rows = torch.randint(5, 60, (40, 12), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"input_ids": self.rows[at]}


def mask_randomly(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Collate rows, with masks drawn from torch's global random state."""
    ids = torch.stack([item["input_ids"] for item in items])
    chosen = torch.rand(ids.shape) < 0.3
    return {"input_ids": ids.masked_fill(chosen, 4), "labels": ids.masked_fill(~chosen, -100)}


def make_trainer(folder: Path, model: Any = None, given: dict[str, Any] | None = None, **settings: Any) -> Any:
    usual = {"max_steps": 6, "save_strategy": "no", "report_to": [], "logging_steps": 1, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True, seed=3,
        dataloader_pin_memory=False, **(usual | settings),
    )  # fmt: skip
    given = {"train_dataset": RandomTexts(), "data_collator": mask_randomly} | (given or {})
    return transformers.Trainer(bert() if model is None else model, arguments, **given)


def train(folder: Path, callbacks: list[Any], resume: str | None = None, **options: Any) -> Any:
    """Train, with checkpoints if `save_steps` is given, and return the Trainer."""
    trainer = make_trainer(folder, **options | ({"save_strategy": "steps"} if "save_steps" in options else {}))
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.remove_callback(transformers.PrinterCallback)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch.load of the Trainer's own random state
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


class StopAtStep3(transformers.TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == 3


@pytest.fixture(autouse=True)
def no_progress_bars() -> None:
    transformers.utils.logging.disable_progress_bar()


# ---- Monitor as a callback


def test_monitor_and_track_give_the_same_records(tmp_path: Path) -> None:
    monitor = Monitor(every=2)
    monitored = train(tmp_path / "a", [monitor], max_steps=5, save_steps=2)
    plain = train(tmp_path / "b", [], max_steps=5)
    assert losses(monitored) == losses(plain)  # with dropout and drawn masks
    assert [row["step"] for row in monitor.records] == [0, 2, 4, 5]
    assert all(row["max_logit"][0] > 0 for row in monitor.records)
    for row in monitor.records[1:3]:
        assert difference(row, tmp_path / "a" / f"checkpoint-{row['step']}") <= 1e-6
    records = track(tmp_path / "a", tmp_path / "tracked.jsonl")
    assert [row["step"] for row in records] == [2, 4, 5]
    for measured, tracked in zip(monitor.records[1:], records, strict=True):
        for name in tracked.keys() - {"files"}:  # of which a live model has none
            assert json.dumps(measured[name]) == json.dumps(tracked[name]) or torch.allclose(
                torch.tensor(measured[name]), torch.tensor(tracked[name]), atol=1e-6, rtol=1e-6
            )
    before = (tmp_path / "a" / "attngeo.jsonl").read_bytes()
    assert len(track(tmp_path / "a")) == 4  # every checkpoint has a record already
    assert (tmp_path / "a" / "attngeo.jsonl").read_bytes() == before


def test_a_collator_with_its_own_generator_gives_training_the_same_rows(tmp_path: Path) -> None:
    class Collator:
        def __init__(self) -> None:
            self.draws = torch.Generator().manual_seed(0)

        def __call__(self, items: list[dict[str, Any]]) -> dict[str, Any]:
            ids = torch.stack([item["input_ids"] for item in items])
            chosen = torch.rand(ids.shape, generator=self.draws) < 0.3
            return {"input_ids": ids.masked_fill(chosen, 4), "labels": ids}

    runs = [train(tmp_path, own, given={"data_collator": Collator()}, max_steps=2) for own in ([], [Monitor()])]
    assert losses(runs[0]) == losses(runs[1])


def test_a_resumed_trainer_continues_its_records(tmp_path: Path) -> None:
    train(tmp_path, [Monitor], save_steps=3)  # a class: the Trainer makes the instance
    path = tmp_path / "attngeo.jsonl"
    assert recorded_steps(path) == [0, 6]
    again = Monitor(every=2)
    train(tmp_path, [again], resume=str(tmp_path / "checkpoint-3"), save_steps=3)
    assert recorded_steps(path) == [0, 4, 6]
    assert difference(again.records[-1], tmp_path / "checkpoint-6") <= 1e-6


def test_the_last_record_is_of_the_last_step_also_with_load_best_model_at_end(tmp_path: Path) -> None:
    scores = iter((3.0, 2.0, 1.0, 0.0))  # the first evaluation is the best

    def compute_metrics(_: Any) -> dict[str, float]:
        return {"quality": next(scores)}

    best = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "greater_is_better": True}
    best |= {"metric_for_best_model": "quality", "max_steps": 6, "save_steps": 2}
    given = {"eval_dataset": RandomTexts(), "compute_metrics": compute_metrics}
    monitor = Monitor(every=4)
    trainer = train(tmp_path / "a", [monitor], given=given, **best)
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    assert [row["step"] for row in monitor.records] == [0, 4, 6]
    assert difference(monitor.records[-1], tmp_path / "a" / "checkpoint-6") <= 1e-6
    assert difference(monitor.records[-1], tmp_path / "a" / "checkpoint-2") > 1e-3
    # After an early stop the best weights are loaded before callbacks run: no record rather than a wrong one.
    scores = iter((3.0, 2.0, 1.0, 0.0))
    stopping = transformers.EarlyStoppingCallback(early_stopping_patience=2)
    early = Monitor(every=4)
    trainer = train(tmp_path / "b", [early, stopping], given=given, **best | {"max_steps": 20})
    assert trainer.state.global_step == 6 and [row["step"] for row in early.records] == [0, 4]


def test_one_monitor_writes_into_the_folder_of_each_trainer(tmp_path: Path) -> None:
    class ReversedTexts(RandomTexts):
        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"input_ids": self.rows[at].flip(0)}

    def short(name: str, monitor: Monitor, data: Any) -> str:
        train(tmp_path / name, [monitor], model=llama(), max_steps=2, given={"train_dataset": data})
        return (tmp_path / name / "attngeo.jsonl").read_text()

    monitor, alone = (Monitor(every=2, heads=False) for _ in range(2))
    first, second = (short(name, monitor, data) for name, data in (("a", RandomTexts()), ("b", ReversedTexts())))
    assert len(first.splitlines()) == 2 and second == short("c", alone, ReversedTexts())
    assert "head_symmetry" not in alone.records[-1] and len(alone.records[-1]["max_logit"]) == 2
    assert not list(tmp_path.rglob("*.old"))


# ---- watch: figures in the trackers of the Trainer


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


@pytest.mark.parametrize("logging_steps", [1, 5])
def test_every_measured_step_is_reported_once_whatever_the_logging_steps(
    tmp_path: Path, logging_steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, listener = make_trainer(tmp_path, logging_steps=logging_steps), Listener()
    trainer.add_callback(listener)
    monitor = attngeo.watch(trainer, every=2)
    trainer.train()
    expected = {row["step"]: statistics.median(row["symmetry"]) for row in monitor.records}
    assert list(expected) == [0, 2, 4, 6]
    assert listener.figures() == pytest.approx(expected)
    assert sum(MEDIAN in logs for _, logs in listener.logs) == 4
    assert "attngeo" not in capsys.readouterr().out  # trackers only, not the terminal
    if logging_steps == 1:  # in the same log as the loss
        assert all("loss" in logs for step, logs in listener.logs if MEDIAN in logs and step)


def test_the_last_step_of_a_stopped_run_is_recorded_and_reaches_trackers_that_are_still_open(tmp_path: Path) -> None:
    accumulated = {"gradient_accumulation_steps": 2}  # two batches are one step
    trainer = make_trainer(tmp_path, logging_steps=100, save_strategy="steps", save_steps=1, **accumulated)
    listener = Listener()
    for callback in (listener, StopAtStep3()):
        trainer.add_callback(callback)
    monitor = attngeo.watch(trainer, every=2)
    trainer.train()
    assert [row["step"] for row in monitor.records] == sorted(listener.figures()) == [0, 2, 3]
    assert difference(monitor.records[-1], tmp_path / "checkpoint-3") <= 1e-6


def test_a_second_call_replaces_the_first_and_what_cannot_be_watched_is_one_line(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    before = len(trainer.callback_handler.callbacks)
    first, second = (attngeo.watch(trainer, every=every) for every in (1, 2))
    callbacks = trainer.callback_handler.callbacks
    assert callbacks[0] is second and first not in callbacks and len(callbacks) == before + 1
    with pytest.raises(InputError, match="trainer: a int, expected a transformers Trainer"):
        attngeo.watch(3)  # type: ignore[arg-type]
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
        quartile = np.quantile(row["symmetry"], 0.75)
        assert found["train/attngeo/encoder/symmetry/upper_quartile"][step] == pytest.approx(quartile)
        assert found["train/attngeo/encoder/L1/symmetry"][step] == pytest.approx(row["symmetry"][1])
        assert found["train/attngeo/encoder/L1H3/dominance"][step] == pytest.approx(row["head_dominance"][1][3])
        assert found["train/attngeo/encoder/max_logit/max"][step] == pytest.approx(max(row["max_logit"]))


@pytest.mark.slow
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
