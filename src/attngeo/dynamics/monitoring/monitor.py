"""`Monitor`: the form of a model watched as it grows, by a callback of transformers' Trainer or from any torch loop."""

from __future__ import annotations

import inspect
import operator
import os
import warnings
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch import Tensor, nn

from attngeo.display import draw
from attngeo.dynamics.monitoring.largest_logits import first_rows, logits_on, opening_rows
from attngeo.dynamics.monitoring.live_scores import measured, read_back
from attngeo.dynamics.monitoring.records import FILE, Record, Records, flat, read_records, record
from attngeo.errors import AttngeoError, InputError, first_line
from attngeo.live.checkpoint import LiveCheckpoint
from attngeo.weights.layout.layers import Layers, open_layers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

try:
    from transformers import TrainerCallback as _Callback
except ImportError:  # a plain loop needs no transformers
    _Callback = object


class Monitor(_Callback):  # type: ignore[misc]  # transformers is untyped here
    """Symmetry, directionality, norm spreads and largest attention logit of every layer and head, every n steps.

    path      a JSONL file, one step a line; under a Trainer by default `attngeo.jsonl` in its output folder
    every     steps from one measurement to the next
    logger    anything with `.log(dict, step)` or `.log(dict)`
    probe     a batch whose first `rows` rows the logits are measured on; by default the batch a call is given, under
              a Trainer the first rows of its data set. Without one there are no logits.
    heads     the heads too, not only the layers
    num_heads, stack, layers, unproven  as in `attngeo.score`

    A run that is continued at step n drops what was recorded after n. Only the first process writes. Where weights
    are sharded all processes have to call, and only queries and keys are put together; logits need a pass through
    the whole model and are then measured only on a batch that was given.

    >>> Trainer(model, args, train_dataset=data, callbacks=[attngeo.Monitor(every=100)]).train()   # doctest: +SKIP

    >>> monitor = attngeo.Monitor("run/attngeo.jsonl", every=100)                                  # doctest: +SKIP
    >>> for step, batch in enumerate(batches):                                                     # doctest: +SKIP
    ...     train(model, batch)
    ...     monitor(step, model, batch)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        every: int = 100,
        logger: Any = None,
        probe: Any = None,
        rows: int = 8,
        heads: bool = True,
        num_heads: int | None = None,
        stack: str | Collection[str] | None = None,
        layers: int | Collection[int] | None = None,
        unproven: bool = False,
    ) -> None:
        if any(type(number) is not int or number < 1 for number in (every, rows)):
            raise InputError(f"every is {every!r} and rows is {rows!r}, positive whole numbers expected")
        if logger is not None and not callable(getattr(logger, "log", None)):
            raise InputError(f"logger: a {type(logger).__name__} has no .log(dict, step)")
        self.path = None if path is None else Path(path)
        self.every, self.logger, self.probe, self.rows, self.heads = every, logger, probe, rows, heads
        self.records: list[Record] = []  # of this run so far, on the first process
        self._own = (self.path, probe)  # what was given; the rest is found anew for every Trainer
        self._options = {"num_heads": num_heads, "stack": stack, "layers": layers, "unproven": unproven}
        self._file: Records | None = None
        self._begun = False
        self._measured: int | None = None  # the step of the last measurement, on every process
        self._model: Any = None
        self._layers: Layers | None = None
        self._warned: set[str] = set()

    def __call__(self, step: SupportsIndex, model: nn.Module, batch: Any = None) -> Record | None:
        """After a training step: measure if it is time. `batch`, if given, is what the logits are measured on."""
        step = _whole(step)
        if not self._begun:
            self.begin(step)
        return None if step % self.every else self.measure(step, model, batch)

    def begin(self, step: int) -> None:
        """A run starts or goes on at `step`: later records are dropped, those of another run before it set aside."""
        self._begun, self._measured, self.records, self._file = True, None, [], None
        if self.path is None or _rank():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and all(row["step"] >= step for row in read_records(self.path)):
            os.replace(self.path, _aside(self.path))
        self._file = Records(self.path, step)
        self.records = self._file.rows

    def measure(self, step: SupportsIndex, model: nn.Module, batch: Any = None) -> Record | None:
        """Measure now and record it; None on all processes but the first."""
        step = _whole(step)
        if not self._begun:
            self.begin(step)
        self._measured = step
        layers, rank = self._placed(model), _rank()
        live = layers.checkpoint
        assert isinstance(live, LiveCheckpoint)
        if rank and not live.sharded:
            return None
        with torch.no_grad():
            found = measured(layers, self.heads)
            logits = self._logits(model if live.sharded else live.model, live, batch)
            if rank:
                return None
            row = record(step, read_back(found, logits))
        self._keep(row)
        return row

    def plot(self) -> Figure:
        """Symmetry and directionality of every layer over the steps."""
        return draw("training_figure", self.records)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        path, self.probe = self._own
        self.path = Path(args.output_dir) / FILE if path is None else path
        self.begin(state.global_step)
        if state.global_step % self.every == 0:
            self._trained(state, given)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step % self.every == 0 or state.global_step >= state.max_steps:
            self._trained(state, given)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        # A run that was stopped early; by now the best checkpoint may be back in place of the last weights.
        replaced = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if self._measured != state.global_step and not (replaced and state.best_global_step != state.global_step):
            self._trained(state, given)

    def _trained(self, state: Any, given: dict[str, Any]) -> None:
        model = given["model"]
        if self.probe is None and not _rank() and not self._sharded(model):
            try:
                self.probe = opening_rows(given.get("train_dataloader"), self.rows)
            except Exception as error:
                self._warn(f"no rows to measure logits on ({first_line(error)}); probe= gives some")
        self.measure(state.global_step, model)

    def _sharded(self, model: nn.Module) -> bool:
        live = self._placed(model).checkpoint
        return isinstance(live, LiveCheckpoint) and live.sharded

    def _placed(self, model: nn.Module) -> Layers:
        """Where the queries and keys of `model` are; looked for once."""
        if self._layers is None or self._model is not model:
            self._model, self._layers = model, open_layers(LiveCheckpoint(model), **self._options)  # type: ignore[arg-type]
        return self._layers

    def _logits(self, model: nn.Module, live: LiveCheckpoint, batch: Any) -> list[Tensor | None]:
        """The largest |logit| of every layer's heads; a batch that does not run costs the logits, not the training."""
        assert self._layers is not None
        batch = self.probe if self.probe is not None else batch
        if batch is None:
            return [None] * self._layers.count
        try:
            rows = first_rows(batch, self.rows, live.device)
            attentions = [live.module_of(plan.site.path) for plan in self._layers.plans]
            return logits_on(model, attentions, rows, not live.sharded)
        except Exception as error:
            self._warn(f"logits could not be measured ({first_line(error)})")
            return [None] * self._layers.count

    def _keep(self, row: Record) -> None:
        if self._file is not None:
            try:
                self._file.add(row)
            except AttngeoError as error:  # a full disk is no reason to stop training
                self._warn(str(error))
        else:
            self.records.append(row)
        if self.logger is not None:
            try:
                log(self.logger, flat(row), row["step"])
            except Exception as error:  # nor is a service that is down
                self._warn(f"the logger fails ({first_line(error)})")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"attngeo.Monitor: {text}", UserWarning, stacklevel=3)


def log(logger: Any, values: dict[str, float], step: int) -> None:
    """Give `values` to a logger in the way it takes a step; as one of the values where it takes none."""
    try:
        parameters = inspect.signature(logger.log).parameters
    except (TypeError, ValueError):  # written in C
        logger.log(values, step)
        return
    kinds = [one.kind for one in parameters.values()]
    needed = [one for one in parameters.values() if one.default is one.empty and one.kind in (0, 1)]
    if "step" in parameters or inspect.Parameter.VAR_KEYWORD in kinds:
        logger.log(values, step=step)
    elif len(needed) > 1 or inspect.Parameter.VAR_POSITIONAL in kinds:
        logger.log(values, step)
    else:
        logger.log({"step": step, **values})


def _whole(step: SupportsIndex) -> int:
    """A step as it can be written down; NumPy and tensors have whole numbers of their own."""
    try:
        return operator.index(step)
    except TypeError:
        raise InputError(f"step is {step!r}, a whole number expected") from None


def _aside(path: Path) -> Path:
    """run.jsonl.old, .old2, …: what was set aside before stays."""
    names = (path.with_name(f"{path.name}.old{number if number > 1 else ''}") for number in count(1))
    return next(name for name in names if not name.exists())


def _rank() -> int:
    distributed = torch.distributed
    return int(distributed.get_rank()) if distributed.is_available() and distributed.is_initialized() else 0
