"""`watch`: attach a Monitor to transformers' Trainer, and pass its figures to the trackers of that Trainer."""

from __future__ import annotations

import copy
from functools import wraps
from typing import TYPE_CHECKING, Any

from attngeo.errors import InputError, first_line
from attngeo.training.monitoring.monitor import Monitor
from attngeo.training.monitoring.records import Record
from attngeo.training.monitoring.tracker_values import Detail, check_detail, tracker_values

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# Callbacks that print what is logged. They would print every figure.
_CONSOLE = {"PrinterCallback", "ProgressCallback", "NotebookProgressCallback", "RichProgressCallback"}


def watch(trainer: Trainer, every: int = 100, *, detail: Detail = "stacks", **options: Any) -> Monitor:
    """Measure the model of `trainer` while it trains, and report the figures to the trackers that the Trainer uses.

    trainer: a transformers Trainer, or one of its subclasses, such as those of trl
    every:   number of steps from one measurement to the next
    detail:  what the trackers get. "stacks": median and quartiles of each figure over the layers of each stack, under
             names such as "attngeo/encoder/symmetry/median". "layers" adds each layer, "heads" each layer and head.
    options: those of `attngeo.Monitor`

    The records are written as by `attngeo.Monitor`, to `attngeo.jsonl` in the output folder, with all layers and heads.
    A second call replaces the monitor of the first.

    >>> import torch, transformers
    >>> model = transformers.AutoModelForCausalLM.from_pretrained(attngeo.bundled("decoder"))
    >>> texts = [{"input_ids": torch.arange(20, 32), "labels": torch.arange(20, 32)}] * 8
    >>> arguments = transformers.TrainingArguments("run", max_steps=2, report_to=[], use_cpu=True, save_strategy="no")
    >>> trainer = transformers.Trainer(model, arguments, train_dataset=texts)
    >>> monitor = attngeo.watch(trainer, every=1)
    >>> _ = trainer.train()  # doctest: +SKIP
    >>> [record["step"] for record in monitor.records]  # doctest: +SKIP
    [0, 1, 2]
    """
    check_detail(detail)
    handler = getattr(trainer, "callback_handler", None)
    callbacks = getattr(handler, "callbacks", None)
    if not isinstance(callbacks, list):
        raise InputError(f"trainer: a {type(trainer).__name__}, expected a transformers Trainer")
    others = [callback for callback in callbacks if not isinstance(callback, TrainerMonitor)]
    if any(isinstance(callback, Monitor) for callback in others):
        raise InputError("trainer: a Monitor is among its callbacks already; remove it, or do not call watch")
    monitor = TrainerMonitor(handler, detail, every=every, **options)
    # The monitor comes before the trackers, so that they see its values and are still open when training ends.
    callbacks[:] = [monitor, *others]
    for callback in filter(_prints, others):
        _do_not_print_figures(callback)
    return monitor


class TrainerMonitor(Monitor):
    """A Monitor that passes its values to the other callbacks of a Trainer.

    The values are added to what the Trainer logs at the measured step. Where it logs nothing at that step, they are
    passed on by themselves before the next step begins.
    """

    def __init__(self, handler: Any, detail: Detail, **options: Any) -> None:
        super().__init__(**options)
        self._handler, self._detail = handler, detail
        self._values: dict[str, float] = {}  # of the last measurement, until they are passed on

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **given: Any
    ) -> None:
        if self._values and logs is not None and self.last_measured == state.global_step:
            logs.update(self._values)
            self._values = {}

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self._pass_on(args, state, control, given)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        super().on_train_end(args, state, control, **given)
        self._pass_on(args, state, control, given)

    def _keep(self, row: Record) -> None:
        super()._keep(row)
        self._values = tracker_values(row, self._detail)

    def _pass_on(self, args: Any, state: Any, control: Any, given: dict[str, Any]) -> None:
        """Pass values that no log of the Trainer has taken to the other callbacks, as a log of their own."""
        values, self._values = self._values, {}
        if not values:
            return
        for callback in list(self._handler.callbacks):
            if callback is not self and not _prints(callback):
                try:
                    callback.on_log(args, state, copy.copy(control), logs=dict(values), **given)
                except Exception as error:
                    self.warn_once(f"{type(callback).__name__} fails ({first_line(error)})")


def _prints(callback: TrainerCallback) -> bool:
    return any(kind.__name__ in _CONSOLE for kind in type(callback).__mro__)


def _do_not_print_figures(callback: Any) -> None:
    """Let a callback that prints what is logged get it without the figures of a monitor."""
    print_log = callback.on_log
    if getattr(print_log, "without_figures", False):
        return

    @wraps(print_log)
    def on_log(args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> Any:
        others = {name: value for name, value in (logs or {}).items() if not name.startswith("attngeo/")}
        return print_log(args, state, control, logs=others, **given)

    on_log.without_figures = True  # type: ignore[attr-defined]
    callback.on_log = on_log
