"""LightningMonitor in a real fit: its records, and its figures in the files of Lightning's loggers."""

from __future__ import annotations

import csv
import logging
import statistics
import warnings
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

import attngeo
from attngeo.errors import InputError
from tests.training.monitoring.record_checks import difference
from tests.training.monitoring.test_trainer import RandomTexts, mask_randomly, scalars
from tests.weights.tiny_models import bert


class Training(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Masked training of a BERT."""

    collate = staticmethod(mask_randomly)

    def __init__(self) -> None:
        super().__init__()
        self.model = bert()
        self.losses: list[float] = []

    def training_step(self, batch: Any, _: int) -> Any:
        loss = self.model(**batch).loss
        self.losses.append(float(loss))
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit(folder: Path, callbacks: list[Any], loggers: Any = False, module: Any = None, **settings: Any) -> Any:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = Training() if module is None else module
    loader = torch.utils.data.DataLoader(RandomTexts(), batch_size=4, collate_fn=module.collate)
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning warns of workers, devices and of torch's deprecated functions
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        trainer = lightning.Trainer(
            accelerator="cpu", callbacks=callbacks, logger=loggers, default_root_dir=folder, max_epochs=-1,
            **quiet | {"max_steps": 5} | settings,
        )  # fmt: skip
        trainer.fit(module, loader)
    return module


def test_records_and_figures_of_a_fit(tmp_path: Path) -> None:
    loggers = [CSVLogger(tmp_path, "csv", "0"), TensorBoardLogger(tmp_path, "events", "0")]
    monitor = attngeo.LightningMonitor(every=2, detail="layers")
    module = fit(tmp_path, [monitor], loggers)
    assert [row["step"] for row in monitor.records] == [0, 2, 4, 5]
    assert all(row["max_logit"][0] > 0 for row in monitor.records)
    module.model.save_pretrained(tmp_path / "saved")
    assert difference(monitor.records[-1], tmp_path / "saved") <= 1e-6
    assert len((tmp_path / "csv" / "0" / "attngeo.jsonl").read_text().splitlines()) == 4
    expected = {row["step"]: statistics.median(row["symmetry"]) for row in monitor.records}
    events = scalars(tmp_path / "events" / "0")
    assert events["attngeo/encoder/symmetry/median"] == pytest.approx(expected, rel=1e-5)
    assert events["attngeo/encoder/L1/dominance"][4] == pytest.approx(monitor.records[2]["dominance"][1], rel=1e-5)
    assert not any("H3" in name for name in events)
    rows = csv.DictReader((tmp_path / "csv" / "0" / "metrics.csv").read_text().splitlines())
    written = {int(row["step"]): float(row["attngeo/encoder/symmetry/median"]) for row in rows}
    assert written == pytest.approx(expected)


def test_training_is_not_affected_and_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    monitor = attngeo.LightningMonitor(tmp_path / "own.jsonl", every=1)
    watched = fit(tmp_path, [monitor], accumulate_grad_batches=2, max_steps=3)
    plain = fit(tmp_path, [], accumulate_grad_batches=2, max_steps=3)
    assert watched.losses == plain.losses and len(plain.losses) == 6
    assert [row["step"] for row in monitor.records] == [0, 1, 2, 3]
    assert (tmp_path / "own.jsonl").exists()


def test_batches_that_are_no_mappings_have_no_logits(tmp_path: Path) -> None:
    class Tuples(Training):
        @staticmethod
        def collate(items: Any) -> Any:
            return tuple(mask_randomly(items).values())

        def training_step(self, batch: Any, index: int) -> Any:
            return super().training_step(dict(zip(("input_ids", "labels"), batch, strict=True)), index)

    monitor = attngeo.LightningMonitor(every=2)
    fit(tmp_path, [monitor], module=Tuples(), max_steps=2)
    assert len(monitor.records) == 2 and "max_logit" not in monitor.records[0]


def test_a_logger_that_fails_does_not_stop_training_and_an_unknown_detail_is_refused(tmp_path: Path) -> None:
    class Failing(CSVLogger):  # type: ignore[misc]
        def log_metrics(self, metrics: Any, step: Any = None) -> None:
            raise ConnectionError("the service is down")

    monitor = attngeo.LightningMonitor(every=1)
    found: list[str] = []
    monitor.monitor.warn_once = found.append  # type: ignore[method-assign]
    fit(tmp_path, [monitor], Failing(tmp_path), max_steps=1)
    assert len(monitor.records) == 2 and set(found) == {"Failing fails (the service is down)"}
    with pytest.raises(InputError, match="detail is 'all'"):
        attngeo.LightningMonitor(detail="all")  # type: ignore[arg-type]
