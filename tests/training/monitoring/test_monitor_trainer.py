"""Monitor as a callback of transformers' Trainer: its records, resumed runs, and that training is not affected."""

from __future__ import annotations

import copy
import json
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from attngeo.training.monitoring.monitor import Monitor  # noqa: E402
from attngeo.training.monitoring.track import track  # noqa: E402
from tests.training.monitoring.record_checks import difference  # noqa: E402
from tests.weights.tiny_models import bert, llama  # noqa: E402


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


def train(
    folder: Path,
    callbacks: list[Any],
    model: Any = None,
    resume: str | None = None,
    given: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    settings = {"max_steps": 6, "save_steps": 2} | settings
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=4, learning_rate=1e-2, report_to=[], use_cpu=True, seed=3,
        logging_steps=1, disable_tqdm=True, dataloader_pin_memory=False, **settings,
    )  # fmt: skip
    model = bert() if model is None else model
    given = {"train_dataset": RandomTexts(), "data_collator": mask_randomly} | (given or {})
    trainer = transformers.Trainer(model, arguments, callbacks=callbacks, **given)
    trainer.remove_callback(transformers.PrinterCallback)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch.load of the Trainer's own random state
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture(autouse=True)
def no_progress_bars() -> Any:
    transformers.utils.logging.disable_progress_bar()


def test_monitor_and_track_give_the_same_records(tmp_path: Path) -> None:
    monitor = Monitor(every=2)
    monitored = train(tmp_path / "a", [monitor], max_steps=5)
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


@pytest.mark.parametrize("draws", [np.random.default_rng(0), random.Random(0), torch.Generator().manual_seed(0)])
def test_a_data_set_with_its_own_generator_gives_training_the_same_rows(tmp_path: Path, draws: Any) -> None:
    class ChangedTexts(RandomTexts):
        """Rows in which one token, drawn anew each time, is replaced."""

        def __init__(self) -> None:
            super().__init__()
            self.draws = copy.deepcopy(draws)

        def __getitem__(self, at: int) -> dict[str, Any]:
            if isinstance(self.draws, torch.Generator):
                place = int(torch.randint(12, (), generator=self.draws))
            else:
                place = int(12 * self.draws.random())
            row = self.rows[at].clone()
            row[place] = 7
            return {"input_ids": row}

    runs = [train(tmp_path, own, given={"train_dataset": ChangedTexts()}, max_steps=2) for own in ([], [Monitor()])]
    assert losses(runs[0]) == losses(runs[1])


def test_a_resumed_trainer_continues_its_records(tmp_path: Path) -> None:
    train(tmp_path, [Monitor], save_steps=3)  # a class: the Trainer makes the instance
    path = tmp_path / "attngeo.jsonl"
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 6]
    plain = train(tmp_path, [], resume=str(tmp_path / "checkpoint-3"), save_steps=3)
    again = Monitor(every=2)
    monitored = train(tmp_path, [again], resume=str(tmp_path / "checkpoint-3"), save_steps=3)
    assert losses(monitored) == losses(plain)
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == [0, 4, 6]
    assert difference(again.records[-1], tmp_path / "checkpoint-6") <= 1e-6


def test_layers_alone_are_measured_under_grouped_queries(tmp_path: Path) -> None:
    monitor = Monitor(every=2, heads=False)
    train(tmp_path, [monitor], model=llama(), max_steps=2)
    row = monitor.records[-1]
    assert row["stack"] == ["decoder"] * 2 and "head_symmetry" not in row and len(row["max_logit"]) == 2


def test_the_last_record_is_of_the_last_step_also_with_load_best_model_at_end(tmp_path: Path) -> None:
    scores = iter((3.0, 2.0, 1.0, 0.0))  # the first evaluation is the best

    def compute_metrics(_: Any) -> dict[str, float]:
        return {"quality": next(scores)}

    best = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "greater_is_better": True}
    best |= {"metric_for_best_model": "quality", "max_steps": 6}
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


def test_a_run_that_stops_early_has_a_record_of_its_last_step(tmp_path: Path) -> None:
    class StopAtStep3(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 3

    monitor = Monitor(every=2)
    train(tmp_path, [monitor, StopAtStep3()], save_steps=1)
    assert [row["step"] for row in monitor.records] == [0, 2, 3]
    assert difference(monitor.records[-1], tmp_path / "checkpoint-3") <= 1e-6


def test_one_monitor_writes_into_the_folder_of_each_trainer(tmp_path: Path) -> None:
    class ReversedTexts(RandomTexts):
        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"input_ids": self.rows[at].flip(0)}

    monitor = Monitor(every=2)
    train(tmp_path / "a", [monitor], max_steps=2)
    train(tmp_path / "b", [monitor], max_steps=2, given={"train_dataset": ReversedTexts()})
    alone = Monitor(every=2)
    train(tmp_path / "c", [alone], max_steps=2, given={"train_dataset": ReversedTexts()})
    assert len((tmp_path / "a" / "attngeo.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "b" / "attngeo.jsonl").read_text() == (tmp_path / "c" / "attngeo.jsonl").read_text()
    assert not list(tmp_path.rglob("*.old"))


def test_accumulated_gradients_count_as_one_step(tmp_path: Path) -> None:
    monitor = Monitor(every=2)
    train(tmp_path, [monitor], max_steps=4, gradient_accumulation_steps=2)
    assert [row["step"] for row in monitor.records] == [0, 2, 4]
    assert all(difference(row, tmp_path / f"checkpoint-{row['step']}") <= 1e-6 for row in monitor.records[1:])
