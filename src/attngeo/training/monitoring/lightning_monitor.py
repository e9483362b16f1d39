"""`LightningMonitor`: scores of a model during training, as a callback of Lightning's Trainer."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attngeo.errors import InputError, first_line
from attngeo.training.monitoring.monitor import Monitor
from attngeo.training.monitoring.records import Detail, Record, check_detail, tracker_values

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from matplotlib.figure import Figure

# The same library under its two names. A Trainer accepts only callbacks of its own; the one in use is imported already.
try:
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ImportError:
    Callback = object


class LightningMonitor(Callback):  # type: ignore[misc]  # lightning is untyped here
    """Measure a model that Lightning trains, and report the figures to the Trainer's loggers.

    path:    a JSON Lines file of records; by default `attngeo.jsonl` in the folder of the logger
    every:   number of optimiser steps from one measurement to the next
    detail:  what the loggers get. "stacks": median and quartiles of each figure over the layers of each stack, under
             names such as "attngeo/encoder/symmetry/median". "layers" adds each layer, "heads" each layer and head.
    options: those of `attngeo.Monitor`

    If the LightningModule has no config of its own, the one transformers model inside it is measured. The largest
    logits are measured on the first rows of the data set, or of `probe`, if they are mappings that this model accepts.

    >>> import lightning
    >>> trainer = lightning.Trainer(callbacks=[attngeo.LightningMonitor(every=100)], logger=False, accelerator="cpu")
    >>> trainer.fit(module, batches)   # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        every: int = 100,
        detail: Detail = "stacks",
        **options: Any,
    ) -> None:
        if Callback is object:
            raise InputError("LightningMonitor needs lightning: pip install lightning")
        check_detail(detail)
        super().__init__()
        self.monitor = Monitor(path, every=every, **options)
        self.detail = detail

    @property
    def records(self) -> list[Record]:
        """The records of this run so far, on the first process."""
        return self.monitor.records

    def plot(self) -> Figure:
        """Draw the symmetry and directionality of every layer over the steps."""
        return self.monitor.plot()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.monitor.begin_of_trainer(trainer.global_step, trainer.log_dir or trainer.default_root_dir)
        given = self.monitor.probe
        self.monitor.find_probe(pl_module, trainer.train_dataloader)
        if not isinstance(self.monitor.probe, Mapping):
            self.monitor.probe = given  # the arguments of a tuple are the LightningModule's own matter
        self._step(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._step(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.monitor.last_measured != trainer.global_step:
            self._report(trainer, self.monitor.measure(trainer.global_step, pl_module))

    def _step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step != self.monitor.last_measured:  # several batches may make one step
            self._report(trainer, self.monitor(trainer.global_step, pl_module))

    def _report(self, trainer: Trainer, row: Record | None) -> None:
        if row is None:
            return
        values = tracker_values(row, self.detail)
        for logger in trainer.loggers:
            try:
                logger.log_metrics(values, step=row["step"])
            except Exception as error:
                self.monitor.warn_once(f"{type(logger).__name__} fails ({first_line(error)})")
