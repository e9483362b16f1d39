"""`Monitor`: scores of a model during training, from any torch loop or as a callback of transformers' Trainer.

`watch` attaches one to a Trainer and passes its figures to the trackers of that Trainer.
"""

from __future__ import annotations

import copy
import inspect
import os
import warnings
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import wraps
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from attngeo.arguments import file_path, whole_number
from attngeo.display import draw
from attngeo.errors import AttngeoError, InputError, first_line
from attngeo.live.checkpoint import LiveCheckpoint
from attngeo.training.monitoring.measure import (
    Batch,
    first_rows,
    first_rows_of_loader,
    largest_logits,
    measure_layers,
)
from attngeo.training.monitoring.records import (
    RECORDS_FILE,
    Detail,
    Record,
    RecordFile,
    check_detail,
    layer_values,
    make_record,
    read_records,
    tracker_values,
)
from attngeo.weights.layout.layers import Layers, open_layers

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

try:
    from transformers import TrainerCallback
except ImportError:  # a plain loop needs no transformers
    TrainerCallback = object


# Callbacks that print what is logged. They would print every figure.
_CONSOLE = {"PrinterCallback", "ProgressCallback", "NotebookProgressCallback", "RichProgressCallback"}


class Logger(Protocol):
    """An object with `.log(dict, step)` or `.log(dict)`, such as the wandb module."""

    @property
    def log(self) -> Callable[..., object]: ...


class Monitor(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Measure the form of every layer and head of a model in training, and its largest attention logits.

    path:   a JSON Lines file, one line per measured step; by default none, under a Trainer `attngeo.jsonl` in its
            output folder
    every:  number of steps from one measurement to the next
    logger: an object with `.log(dict, step)` or `.log(dict)`
    probe:  a batch whose first `rows` rows the logits are measured on. By default the batch given to the call, under a
            Trainer the first rows of its data set. Without any of them no logits are measured.
    rows:   number of rows of the probe that are used
    heads:  measure the heads too, not only the layers
    num_heads, stack, layers, unproven: as in `attngeo.score`

    A run that continues at step n drops the records of later steps. Only the first process writes. If the weights are
    sharded, all processes have to call the monitor; only queries and keys are gathered. Logits need a forward pass
    through the whole model, so for sharded weights they are measured only on a batch or probe that was given.

    >>> Trainer(model, args, train_dataset=data, callbacks=[attngeo.Monitor(every=100)]).train()   # doctest: +SKIP

    Or in a training loop of one's own:

    >>> import torch
    >>> from transformers import AutoModelForMaskedLM
    >>> model = AutoModelForMaskedLM.from_pretrained(attngeo.bundled("encoder"))
    >>> batches = [{"input_ids": torch.arange(20, 32)[None]}]  # [batch, tokens]
    >>> monitor = attngeo.Monitor("run/attngeo.jsonl", every=100)
    >>> for step, batch in enumerate(batches):
    ...     record = monitor(step, model, batch)  # before the optimiser's step, so that step 0 is the initialisation
    >>> len(Path("run/attngeo.jsonl").read_text().splitlines())
    1
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        every: int = 100,
        logger: Logger | None = None,
        probe: Batch | None = None,
        rows: int = 8,
        heads: bool = True,
        num_heads: int | None = None,
        stack: str | Collection[str] | None = None,
        layers: int | Collection[int] | None = None,
        unproven: bool = False,
    ) -> None:
        self.path = None if path is None else file_path(path)
        self.every, self.rows = whole_number(every, "every", 1), whole_number(rows, "rows", 1)
        self.logger, self.probe, self.heads = logger, probe, heads
        self.records: list[Record] = []  # of this run so far, on the first process
        self._given = (self.path, probe)  # arguments; each Trainer gets its own path and probe where they are None
        self._options: dict[str, Any] = {"num_heads": num_heads, "stack": stack, "layers": layers, "unproven": unproven}
        self._file: RecordFile | None = None
        self.last_measured: int | None = None  # the step, on every process; −1: none yet in this run; None: no run yet
        self._modules: list[nn.Module] = []  # of the model that was measured last
        self._found: tuple[LiveCheckpoint, Layers] | None = None  # what was found of them
        self._warned: set[str] = set()

    def __call__(self, step: int, model: nn.Module, batch: Batch | None = None) -> Record | None:
        """Measure if `step` is a multiple of `every`, and return the record; to be called before each training step.

        step:  the number of optimiser steps taken so far, as a Trainer counts them
        batch: measures the logits if no probe was given; a tensor, or tensors in a mapping or sequence
        """
        if self.last_measured is None or step < self.last_measured:
            self.begin(step)
        return None if step % self.every else self.measure(step, model, batch)

    def begin(self, step: int) -> None:
        """Start a run at `step`, or continue one.

        Records of later steps are dropped. If all records are of this step or later, they belong to another run, and
        their file is renamed.
        """
        self.last_measured, self._file = -1, None
        self.records = [row for row in self.records if row["step"] < step]
        if self.path is None or _rank():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and all(row["step"] >= step for row in read_records(self.path)):
            os.replace(self.path, _unused_name(self.path))
        self._file = RecordFile(self.path, step)
        self.records = self._file.rows

    def begin_of_trainer(self, step: int, folder: str) -> None:
        """Start a run at `step`, or continue one, with the path and the probe of a Trainer where none was given."""
        path, self.probe = self._given
        self.path = Path(folder) / RECORDS_FILE if path is None else path
        self.begin(step)

    def measure(self, step: int, model: nn.Module, batch: Batch | None = None) -> Record | None:
        """Measure now, write the record and return it; return None on all processes but the first."""
        if self.last_measured is None:
            self.begin(step)
        self.last_measured = step
        live, layers = self._find(model)
        if _rank() and not live.sharded:
            return None
        with torch.no_grad():
            figures = measure_layers(layers.read_with(live.tensor), self.heads)
            logits = self._logits(model, live, layers, batch)
        if _rank():
            return None
        row = make_record(
            step,
            [
                replace(one, logits=None if largest is None else largest.tolist())
                for one, largest in zip(figures, logits, strict=True)
            ],
        )
        self._keep(row)
        return row

    def plot(self) -> Figure:
        """Draw the symmetry and directionality of every layer over the steps."""
        return draw("training_figure", self.records)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self.begin_of_trainer(state.global_step, args.output_dir)
        if state.global_step % self.every == 0:
            self._measure_trainer(state, given)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if state.global_step % self.every == 0 or state.global_step >= state.max_steps:
            self._measure_trainer(state, given)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        # The last step of a run that was stopped early. By now the Trainer may have replaced its weights by the best.
        replaced = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if self.last_measured != state.global_step and not (replaced and state.best_global_step != state.global_step):
            self._measure_trainer(state, given)

    def _measure_trainer(self, state: TrainerState, given: dict[str, Any]) -> None:
        self.find_probe(given["model"], given.get("train_dataloader"))
        self.measure(state.global_step, given["model"])

    def find_probe(self, model: nn.Module, loader: Any) -> None:
        """Use the first rows of the loader's data set as probe, if none was given and one process holds all weights."""
        if self.probe is None and not _rank() and not self._find(model)[0].sharded:
            try:
                self.probe = first_rows_of_loader(loader, self.rows)
            except Exception as error:
                self.warn_once(f"there are no rows to measure logits on ({first_line(error)}); set probe=")

    def _find(self, model: nn.Module) -> tuple[LiveCheckpoint, Layers]:
        """Return the weights and the attention layers of `model`, found again only if a module of it was replaced."""
        modules = list(model.modules())
        if self._found is None or self._modules != modules:
            live = LiveCheckpoint(model, saved_names=True)
            self._found, self._modules = (live, open_layers(live, **self._options)), modules
            for remark in self._found[1].left_out:
                self.warn_once(remark)
        return self._found

    def _logits(
        self, model: nn.Module, live: LiveCheckpoint, layers: Layers, batch: Batch | None
    ) -> list[Tensor | None]:
        """Return the largest |logit| of each head, [H], per layer.

        If the model cannot run on the batch, a warning is emitted and training continues.
        """
        batch = self.probe if self.probe is not None else batch
        if batch is not None:
            try:
                rows = first_rows(batch, self.rows, live.device)
                attentions = [live.module_of(layer.tensors) for layer in layers.unread]
                whole = model if live.sharded else live.model
                return largest_logits(whole, attentions, rows, single_process=not live.sharded)
            except Exception as error:
                self.warn_once(f"logits could not be measured ({first_line(error)})")
        return [None] * layers.count

    def _keep(self, row: Record) -> None:
        """Write a record and pass it to the logger; neither a full disk nor a failing logger stops the training."""
        if self._file is not None:
            try:
                self._file.add(row)
            except AttngeoError as error:
                self.warn_once(str(error))
        else:
            self.records.append(row)
        if self.logger is not None:
            try:
                _log(self.logger, layer_values(row), row["step"])
            except Exception as error:
                self.warn_once(f"the logger fails ({first_line(error)})")

    def warn_once(self, text: str) -> None:
        """Emit a warning, once per text."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"attngeo.Monitor: {text}", UserWarning, stacklevel=3)


def _log(logger: Logger, values: dict[str, float], step: int) -> None:
    """Call `logger.log` with the values and the step; if it accepts no `step`, the step is one of the values."""
    parameters = inspect.signature(logger.log).parameters
    if "step" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        logger.log(values, step=step)
    else:
        logger.log({"step": step, **values})


def _unused_name(path: Path) -> Path:
    """Return run.jsonl.old, .old2 and so on: the first name that no earlier run uses."""
    names = (path.with_name(f"{path.name}.old{number if number > 1 else ''}") for number in count(1))
    return next(name for name in names if not name.exists())


def _rank() -> int:
    distributed = torch.distributed
    return int(distributed.get_rank()) if distributed.is_available() and distributed.is_initialized() else 0


# ---- the trackers of a Trainer


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
    if handler is None:
        raise InputError(f"trainer: a {type(trainer).__name__}, expected a transformers Trainer")
    others = [callback for callback in handler.callbacks if not isinstance(callback, TrainerMonitor)]
    if any(isinstance(callback, Monitor) for callback in others):
        raise InputError("trainer: a Monitor is among its callbacks already; remove it, or do not call watch")
    monitor = TrainerMonitor(handler, detail, every=every, **options)
    # The monitor comes before the trackers, so that they see its values and are still open when training ends.
    handler.callbacks[:] = [monitor, *others]
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


def _prints(callback: Any) -> bool:
    return any(kind.__name__ in _CONSOLE for kind in type(callback).__mro__)


def _do_not_print_figures(callback: Any) -> None:
    """Let a callback that prints what is logged get it without the figures of a monitor."""
    print_log = callback.on_log

    @wraps(print_log)
    def on_log(args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> Any:
        others = {name: value for name, value in (logs or {}).items() if not name.startswith("attngeo/")}
        return print_log(args, state, control, logs=others, **given)

    callback.on_log = on_log
