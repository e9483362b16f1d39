"""`pretrain`: from a config to a trained model; train, evaluate, checkpoint, and continue after a kill."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attngeo.errors import AttngeoError, InputError, SourceError
from attngeo.io.files import folder_lock, remove_unfinished
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.training.data.masking import MaskedObjective
from attngeo.training.data.tokens import Tokens, open_tokens, prepare_tokens
from attngeo.training.initialise import initialise_
from attngeo.training.monitoring.records import RecordFile
from attngeo.training.pretraining.architectures import Bert, Llama, Model, ModernBert, PreNormBert, Shape
from attngeo.training.pretraining.batches import Batches, CausalObjective, Objective, Rows, held_out_batches
from attngeo.training.pretraining.checkpoint import load_checkpoint, save_checkpoint, save_model, tokenizer_files
from attngeo.training.pretraining.config import PretrainConfig, load_config
from attngeo.training.pretraining.engine import Engine, ProcessGroup, process_group
from attngeo.training.pretraining.measure import form_scores, largest_logits, mean_self_logits

_LOGIT_ROWS = 16  # held-out rows on which attention logits are measured
_ARCHITECTURES: dict[str, type[Model]] = {"bert": Bert, "modernbert": ModernBert, "llama": Llama}
_SELF_BIAS_ROWS = 16  # held-out rows on which the self-bias is measured


@dataclass(frozen=True)
class Run:
    """A run and its records: one per evaluation, `step` from 0 to `config.steps`."""

    folder: Path
    config: PretrainConfig
    records: tuple[Mapping[str, Any], ...]
    model: Model | None = field(default=None, compare=False, repr=False)  # as it is after the last step taken

    @property
    def finished(self) -> bool:
        """Whether all steps were taken."""
        return bool(self.records) and self.records[-1]["step"] == self.config.steps

    @property
    def loss(self) -> float:
        """Held-out loss in nats at the last evaluation."""
        return float(self.records[-1]["eval_loss"])


class TrainingError(AttngeoError):
    """The loss of a run is not finite from `step` on."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


@accepts_progress_bar
def pretrain(
    config: PretrainConfig | Mapping[str, Any] | str | Path,
    *,
    progress: Progress | bool | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Pre-train a BERT, ModernBERT or LLaMA and return the run with its records.

    A run that was killed continues from its last checkpoint and gives the same losses (bitwise on a CPU).

    config: a PretrainConfig, a mapping of its fields, or the path of a TOML file
    progress: called with (documents done, None) while tokens are prepared, then with (steps done, steps in all);
        True draws a progress bar
    stop: called at every evaluation; when it returns true, the run is checkpointed and returned unfinished

    >>> settings = {"out": "runs/a", "train": ["corpus.txt"], "size": "4x256", "start": "symmetric"}
    >>> run = attngeo.pretrain(settings)                                # doctest: +SKIP
    >>> model = AutoModelForMaskedLM.from_pretrained("runs/a/model")    # doctest: +SKIP
    """
    config = load_config(config)
    call = progress if callable(progress) else None
    processes = process_group()
    if processes.rank == 0:  # the first process prepares the tokens, then the others open them
        tokens = tokens_for(config, call)
    processes.wait()
    if processes.rank:
        tokens = tokens_for(config)
    return train(config, tokens, processes, progress=call, stop=stop)


def tokens_for(config: PretrainConfig, progress: Progress | None = None) -> Tokens:
    """Return the token files of a config, which are prepared now if they do not exist."""
    folder = Path(config.tokens) if config.tokens else Path(config.out).parent / "tokens"
    if not config.train:
        if not config.tokens:
            raise InputError("neither train (text) nor tokens (prepared token files) is set")
        return open_tokens(folder)
    return prepare_tokens(
        folder,
        config.train,
        config.valid,
        tokenizer=config.tokenizer,
        vocabulary=config.vocab,
        lowercase=config.lowercase,
        field=config.text_field,
        progress=progress,
    )


def build_model(config: PretrainConfig, tokens: Tokens, device: torch.device) -> Model:
    """Return the initialised model on `device`; every weight outside queries and keys depends on the seed only.

    The authors' recipe and the mimetic initialisations with values change other weights too.
    """
    if tokens.vocabulary > config.vocab:
        raise InputError(f"{tokens.folder}: its tokenizer has {tokens.vocabulary} tokens and does not fit a model with "
                         f"vocab = {config.vocab}")  # fmt: skip
    pad = tokens.special[0]
    if pad and config.norm == "pre" and config.keep_model:
        raise InputError(f"{tokens.folder}: [PAD] is token {pad} of its tokenizer, expected token 0 with norm = 'pre'; "
                         "transformers' model counts positions from it (or set keep_model = false)")  # fmt: skip
    kind = PreNormBert if config.norm == "pre" else _ARCHITECTURES[config.architecture]
    layers, hidden, heads = config.shape
    # A gated feed-forward layer has three matrices in place of two: 8d/3, in whole tiles of 64, is about as large.
    usual = 4 * hidden if config.architecture == "bert" else -(-8 * hidden // (3 * 64)) * 64
    shape = Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        intermediate=config.intermediate or usual,
        vocabulary=-(-tokens.vocabulary // 64) * 64,  # rounded up to whole tiles of the output product
        length=config.length,
        causal=config.objective == "causal",
        pad=pad,
    )
    on_gpu = device.type == "cuda"
    bf16 = config.precision == "bf16" or (config.precision == "auto" and on_gpu)
    compiled = config.compile == "yes" or (config.compile == "auto" and on_gpu)
    self_bias = _unit_symmetric_self_logits(kind, shape, config, tokens) if config.self_bias else None
    model = kind(shape, torch.bfloat16 if bf16 else torch.float32, compiled, self_bias)
    model.initialise(config.seed)
    initialise_(model, config.start, scale=config.scale, seed=config.seed)
    model.to(device)
    return model


def _unit_symmetric_self_logits(kind: type[Model], shape: Shape, config: PretrainConfig, tokens: Tokens) -> list[float]:
    """Return the mean logit of a token with itself in each layer of the unit symmetric initialisation, same seed.

    It is measured on held-out rows, on the CPU in float32, so that every device gets the same numbers.
    """
    model = kind(shape)
    model.initialise(config.seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* symmetric initialisation")  # this model is measured, never trained
        initialise_(model, "symmetric", scale="unit", seed=config.seed)
    rows = Rows(tokens, "valid", config.length, torch.device("cpu"), config.batch)
    some = rows.take(torch.arange(min(_SELF_BIAS_ROWS, rows.count)))  # [rows, length]
    means: list[float] = mean_self_logits(model, some)
    return means


def build_objective(config: PretrainConfig, tokens: Tokens) -> Objective:
    """Return the objective of a config."""
    if config.objective == "causal":
        return CausalObjective()
    return MaskedObjective(tokens.mask, tokens.special, tokens.vocabulary, config.masked)


def train(
    config: PretrainConfig,
    tokens: Tokens,
    processes: ProcessGroup,
    *,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    observe: Callable[[int, Model], None] | None = None,
) -> Run:
    """Train a model on prepared token files, in the folder `config.out`, which is locked meanwhile.

    progress: called with (steps done, steps in all)
    stop: called at every evaluation; when it returns true, the run is checkpointed and returned unfinished
    observe: called with the step and the model at every evaluation; it must leave the model as it is
    """
    folder = Path(config.out)
    with ExitStack() as lock:
        if processes.rank == 0:  # the first process holds the lock for all
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"{folder}: cannot be made a folder ({error.strerror})") from error
            if config.warmup > config.steps:
                warnings.warn(f"warmup is {config.warmup}, steps is {config.steps}: lr is never reached", stacklevel=2)
            lock.enter_context(folder_lock(folder))
            remove_unfinished(folder)
        training = _Training(config, tokens, processes)
        evaluations, checkpoints = evaluation_and_checkpoint_steps(config)
        while True:
            step = training.step
            if step in evaluations and step > training.evaluated:
                training.evaluate()
                if observe is not None:
                    observe(step, training.model)
                if step in checkpoints:
                    training.save()
                if step < config.steps and stop is not None and processes.any(stop()):
                    training.save()
                    break
                training.began = time.perf_counter()
            if progress is not None and step % 20 == 0:
                progress(step, config.steps)
            if step >= config.steps:
                break
            training.take_step()
        run = Run(folder, config, tuple(training.records.rows), training.model)
        if run.finished and config.keep_model and processes.rank == 0:
            save_model(training.model, folder / "model", training.tokenizer, config)
        processes.wait()
        return run


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
        folder = Path(config.out)
        self.checkpoint = folder / "checkpoint.pt"
        saved = load_checkpoint(self.checkpoint, config)
        if saved is None and (folder / "model" / "config.json").exists():
            raise InputError(f"{folder}: holds a trained model and no checkpoint to continue from; "
                             "name another folder")  # fmt: skip
        if saved is not None and saved["tokens"] != tokens.digest:
            raise InputError(f"{self.checkpoint}: was trained on other tokens than {tokens.folder}")
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
        self.batches = Batches(
            rows, objective, batch=config.batch, seed=config.seed, rank=processes.rank, world=processes.world
        )
        self.held_out = held_out_batches(held_out, objective, config.batch, processes.world)
        self.engine = Engine(self.model, config, processes)
        if saved is not None:
            self.engine.restore(saved)
        # A checkpoint is written after the evaluation of its step, so that step has been evaluated.
        self.evaluated = -1 if saved is None else self.step
        self.records = RecordFile(folder / "metrics.jsonl", self.evaluated, writing=processes.rank == 0)
        if saved is not None and (not self.records.rows or self.records.rows[-1]["step"] != self.step):
            raise SourceError(f"{self.records.path}: no record of step {self.step}, "
                              f"after which {self.checkpoint.name} was written")  # fmt: skip
        # Training losses since step `since`; they stay on the device until the next evaluation.
        self.losses = torch.zeros(max(1, math.ceil(config.steps / config.evaluations)), device=processes.device)
        self.since, self.began = self.step, time.perf_counter()

    def take_step(self) -> None:
        """Train on the next batch."""
        self.losses[self.step - self.since] = self.engine.step(self.batches.at(self.step), self.step)
        self.step += 1

    def evaluate(self) -> None:
        """Add the record of the current step; raise if a loss since the last evaluation is not finite."""
        losses = self.losses[: self.step - self.since].tolist()
        seconds = time.perf_counter() - self.began
        for number, loss in enumerate(losses, self.since + 1):
            self._check_finite(loss, "loss", number)
        with torch.no_grad():
            held_out = (self.model.loss(batch.ids, batch.positions, batch.targets) for batch in self.held_out)
            total = float(sum(held_out))
        self._check_finite(total, "held-out loss", self.step)
        self.records.add(
            {
                "step": self.step,
                "train_loss": sum(losses) / len(losses) if losses else None,
                "eval_loss": total / len(self.held_out),
                "max_logit": largest_logits(self.model, self.held_out[0].ids[:_LOGIT_ROWS]),
                **form_scores(self.model),
                **({} if self.model.self_bias is None else {"self_bias": list(self.model.self_bias)}),
                "steps_per_second": round(len(losses) / seconds, 2) if losses else None,
            }
        )
        self.evaluated = self.since = self.step

    def save(self) -> None:
        """Write the checkpoint."""
        if self.processes.rank == 0:
            state = {"step": self.step, "tokens": self.tokens.digest, **self.engine.state()}
            save_checkpoint(self.checkpoint, self.config, state)

    def _check_finite(self, loss: float, name: str, step: int) -> None:
        if not math.isfinite(loss):
            kept = "there is no checkpoint yet"
            if self.checkpoint.exists():
                kept = f"the last good checkpoint is {self.checkpoint}"
            raise TrainingError(f"{self.config.out}: {name} is {loss} at step {step}; stopped, {kept}", step)
