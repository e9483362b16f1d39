"""The training loop: train, evaluate, checkpoint, and continue from the last checkpoint after a kill."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attngeo.errors import AttngeoError, InputError, SourceError, first_line
from attngeo.io.files import folder_lock, remove_unfinished
from attngeo.io.progress import Progress
from attngeo.training.data.tokens import Tokens
from attngeo.training.monitoring.records import RecordFile
from attngeo.training.pretraining.architectures import Model
from attngeo.training.pretraining.batches import Batches, Rows, held_out_batches, warn_of_short_rows
from attngeo.training.pretraining.build import build_model, build_objective
from attngeo.training.pretraining.checkpoint import load_checkpoint, save_checkpoint, save_model, tokenizer_files
from attngeo.training.pretraining.config import PretrainConfig
from attngeo.training.pretraining.engine import Engine
from attngeo.training.pretraining.measure import form_scores, largest_logits
from attngeo.training.pretraining.processes import ProcessGroup

Stop = Callable[[], bool]
_LOGIT_ROWS = 16  # held-out rows on which attention logits are measured


class TrainingError(AttngeoError):
    """The loss of a run is not finite from `step` on."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


@dataclass(frozen=True)
class Run:
    """A run and its records: one per evaluation, `step` from 0 to `config.steps`."""

    folder: Path
    config: PretrainConfig
    records: tuple[Mapping[str, Any], ...]

    @property
    def finished(self) -> bool:
        """Whether all steps were taken."""
        return bool(self.records) and self.records[-1]["step"] == self.config.steps

    @property
    def loss(self) -> float:
        """Held-out loss in nats at the last evaluation."""
        return float(self.records[-1]["eval_loss"])


def train(
    config: PretrainConfig,
    tokens: Tokens,
    processes: ProcessGroup,
    *,
    progress: Progress | None = None,
    stop: Stop | None = None,
    observe: Callable[[int, Model], None] | None = None,
    after: Callable[[Model], None] | None = None,
) -> Run:
    """Train a model on prepared token files, in the folder `config.out`, which is locked meanwhile.

    progress: called with (steps done, steps in all)
    stop: called at every evaluation; when it returns true, the run is checkpointed and returned unfinished
    observe: called with the step and the model at every evaluation; it must leave the model as it is
    after: called with the trained model when the run has finished and was saved
    """
    if processes.rank:  # the first process holds the lock for all
        return _Training(config, tokens, processes).run(progress, stop, observe, after)
    folder = Path(config.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made a folder ({error.strerror})") from error
    if config.warmup > config.steps:
        warnings.warn(f"warmup is {config.warmup}, steps is {config.steps}: lr is never reached", stacklevel=2)
    with folder_lock(folder):
        remove_unfinished(folder)
        return _Training(config, tokens, processes).run(progress, stop, observe, after)


def evaluation_and_checkpoint_steps(config: PretrainConfig) -> tuple[set[int], set[int]]:
    """Return the steps that are evaluated, 0 and the last among them, and those that are checkpointed.

    A checkpoint is written right after an evaluation, so the second set is part of the first.
    """
    evaluated = [round(i * config.steps / config.evaluations) for i in range(config.evaluations + 1)]
    wanted = (round(i * config.steps / config.checkpoints) for i in range(1, config.checkpoints + 1))
    return set(evaluated), {next(step for step in evaluated if step >= least) for least in wanted}


class _Training:
    """A run in progress: its model, optimiser, data and records, and the number of steps taken."""

    def __init__(self, config: PretrainConfig, tokens: Tokens, processes: ProcessGroup) -> None:
        self.config, self.tokens, self.processes = config, tokens, processes
        self.folder = Path(config.out)
        self.checkpoint = self.folder / "checkpoint.pt"
        saved = self._saved_state()
        self.step: int = 0 if saved is None else saved["step"]
        if not processes.all_equal(self.step):
            raise InputError(f"{self.checkpoint}: not every process finds it; out must be on a disk they share")
        if config.keep_model:  # read now, so that an error does not come after the training
            self.tokenizer = tokenizer_files(Path(tokens.folder), config.length)
        # A checkpoint has no random state: order and masks of step n follow from the seed and n.
        self.model = build_model(config, tokens, processes.device)
        objective = build_objective(config, tokens)
        rows = Rows(tokens, "train", config.length, processes.device, config.batch)
        held_out = Rows(tokens, "valid", config.length, processes.device, config.batch)
        if processes.rank == 0:
            for part in (rows, held_out):
                warn_of_short_rows(part, objective)
        self.batches = Batches(
            rows, objective, batch=config.batch, seed=config.seed, rank=processes.rank, world=processes.world
        )
        self.held_out = held_out_batches(held_out, objective, config.batch, processes.world)
        self.engine = Engine(self.model, config, processes)
        if saved is not None:
            self._restore(saved)
        # A checkpoint is written after the evaluation of its step, so that step has been evaluated.
        self.evaluated = -1 if saved is None else self.step
        self.records = RecordFile(self.folder / "metrics.jsonl", self.evaluated, writing=processes.rank == 0)
        if saved is not None and (not self.records.rows or self.records.rows[-1]["step"] != self.step):
            raise SourceError(f"{self.records.path}: no record of step {self.step}, "
                              f"after which {self.checkpoint.name} was written")  # fmt: skip
        # Training losses since the last evaluation; they stay on the device until then.
        self.losses = torch.zeros(max(1, math.ceil(config.steps / config.evaluations)), device=processes.device)
        self.since, self.began = self.step, time.perf_counter()

    def run(
        self,
        progress: Progress | None,
        stop: Stop | None,
        observe: Callable[[int, Model], None] | None,
        after: Callable[[Model], None] | None,
    ) -> Run:
        """Train from the current step to the end, or until `stop` returns true at an evaluation."""
        config = self.config
        evaluations, checkpoints = evaluation_and_checkpoint_steps(config)
        while True:
            if self.step in evaluations and self.step > self.evaluated:
                self.records.add(self._evaluate())
                self.evaluated = self.since = self.step
                if observe is not None:
                    observe(self.step, self.model)
                if self.step in checkpoints:
                    self._save()
                if self.step < config.steps and stop is not None and self.processes.any(stop()):
                    self._save()
                    break
                self.began = time.perf_counter()
            if progress is not None and self.step % 20 == 0:
                progress(self.step, config.steps)
            if self.step >= config.steps:
                break
            self.losses[self.step - self.since] = self.engine.step(self.batches.at(self.step), self.step)
            self.step += 1
        run = Run(self.folder, config, tuple(self.records.rows))
        if run.finished and config.keep_model and self.processes.rank == 0:
            save_model(self.model, self.folder / "model", self.tokenizer, config)
        if run.finished and after is not None:
            after(self.model)
        self.processes.wait()
        return run

    def _saved_state(self) -> dict[str, Any] | None:
        """Return the state to continue from, or None for a new run."""
        saved = load_checkpoint(self.checkpoint, self.config)
        if saved is None and (self.folder / "model" / "config.json").exists():
            raise InputError(f"{self.folder}: holds a trained model and no checkpoint to continue from; "
                             "name another folder")  # fmt: skip
        if saved is not None and saved["tokens"] != self.tokens.digest:
            raise InputError(f"{self.checkpoint}: was trained on other tokens than {self.tokens.folder}")
        return saved

    def _restore(self, saved: dict[str, Any]) -> None:
        try:
            self.engine.restore(saved)
        except (KeyError, RuntimeError, TypeError, AttributeError) as error:
            raise SourceError(f"{self.checkpoint}: its weights are not those of this model "
                              f"({first_line(error)})") from error  # fmt: skip

    def _evaluate(self) -> dict[str, Any]:
        """Return the record of the current step; raise if a loss since the last evaluation is not finite."""
        losses = self.losses[: self.step - self.since].tolist()
        seconds = time.perf_counter() - self.began
        for number, loss in enumerate(losses, self.since + 1):
            self._check_finite(loss, "loss", number)
        with torch.no_grad():
            held_out = (self.model.loss(batch.ids, batch.positions, batch.targets) for batch in self.held_out)
            total = float(sum(held_out))
        self._check_finite(total, "held-out loss", self.step)
        return {
            "step": self.step,
            "train_loss": sum(losses) / len(losses) if losses else None,
            "eval_loss": total / len(self.held_out),
            "max_logit": largest_logits(self.model, self.held_out[0].ids[:_LOGIT_ROWS]),
            **form_scores(self.model),
            **({} if self.model.self_bias is None else {"self_bias": list(self.model.self_bias)}),
            "steps_per_second": round(len(losses) / seconds, 2) if losses else None,
        }

    def _check_finite(self, loss: float, name: str, step: int) -> None:
        if not math.isfinite(loss):
            kept = "there is no checkpoint yet"
            if self.checkpoint.exists():
                kept = f"the last good checkpoint is {self.checkpoint}"
            raise TrainingError(f"{self.folder}: {name} is {loss} at step {step}; stopped, {kept}", step)

    def _save(self) -> None:
        if self.processes.rank == 0:
            state = {"step": self.step, "tokens": self.tokens.digest, **self.engine.state()}
            save_checkpoint(self.checkpoint, self.config, state)
