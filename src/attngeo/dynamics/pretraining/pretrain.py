"""`pretrain`: a config in, a trained model with its records out; killed at any moment, it goes on where it was."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attngeo.dynamics.data.tokens import Tokens, open_tokens, prepare
from attngeo.dynamics.initialisation.by_name import start_
from attngeo.dynamics.monitoring.records import Records
from attngeo.dynamics.pretraining.batches import Batches, Causal, Masked, Rows, fixed
from attngeo.dynamics.pretraining.bert import Bert, Shape
from attngeo.dynamics.pretraining.checkpoint import load_checkpoint, save_checkpoint, save_model
from attngeo.dynamics.pretraining.config import PretrainConfig, load_config
from attngeo.dynamics.pretraining.engine import Engine
from attngeo.dynamics.pretraining.measure import form, largest_logit
from attngeo.dynamics.pretraining.processes import Team, team
from attngeo.errors import AttngeoError, InputError, SourceError
from attngeo.io.lock import folder_lock

Progress = Callable[[int, int | None], None]


class TrainingError(AttngeoError):
    """A run whose loss is no longer a number, from `step` on."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


@dataclass(frozen=True)
class Run:
    """A run and what was measured: one record per evaluation, `step` from 0 to `config.steps`."""

    folder: Path
    config: PretrainConfig
    records: tuple[Mapping[str, Any], ...]

    @property
    def finished(self) -> bool:
        return bool(self.records) and self.records[-1]["step"] == self.config.steps

    @property
    def loss(self) -> float:
        """Held-out loss at the last evaluation."""
        return float(self.records[-1]["eval_loss"])


def pretrain(
    config: PretrainConfig | Mapping[str, Any] | str | Path,
    *,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Pre-train a BERT-shaped model; started again it continues, and gives the same losses (bitwise on a CPU).

    config    a PretrainConfig, a mapping of its fields, or the path of a TOML file
    progress  called with (documents done, None) while tokens are prepared, then with (steps done, steps in all)
    stop      asked at every evaluation; when true the run is checkpointed and returned unfinished

    >>> run = attngeo.pretrain({"out": "runs/a", "train": ["corpus.txt"], "size": "4x256", "start": "symmetric"})
    >>> AutoModelForMaskedLM.from_pretrained("runs/a/model")
    """
    config = load_config(config)
    mine = team()
    if mine.rank == 0:
        tokens = prepared(config, progress)
    mine.wait()
    return train(config, prepared(config) if mine.rank else tokens, mine, progress=progress, stop=stop)


def prepared(config: PretrainConfig, progress: Progress | None = None) -> Tokens:
    """The token files of a config, made now or before."""
    folder = Path(config.tokens) if config.tokens else Path(config.out).parent / "tokens"
    if not config.train:
        if not config.tokens:
            raise InputError("neither train (text) nor tokens (prepared token files) is set")
        return open_tokens(folder)
    return prepare(
        folder,
        config.train,
        config.valid,
        tokenizer=config.tokenizer,
        vocabulary=config.vocab,
        lowercase=config.lowercase,
        field=config.text_field,
        progress=progress,
    )


def train(
    config: PretrainConfig,
    tokens: Tokens,
    mine: Team,
    *,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """`pretrain` on token files that are ready."""
    folder = Path(config.out)
    if mine.rank:
        return _train(config, tokens, mine, progress, stop)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made a folder ({error.strerror})") from error
    if config.warmup > config.steps:
        warnings.warn(f"warmup is {config.warmup}, steps is {config.steps}: lr is never reached", stacklevel=2)
    with folder_lock(folder):
        return _train(config, tokens, mine, progress, stop)


def _train(
    config: PretrainConfig, tokens: Tokens, mine: Team, progress: Progress | None, stop: Callable[[], bool] | None
) -> Run:
    folder = Path(config.out)
    checkpoint = folder / "checkpoint.pt"
    saved = load_checkpoint(checkpoint, config)
    if saved is not None and saved["tokens"] != tokens.digest:
        raise InputError(f"{checkpoint}: was trained on other tokens than {tokens.folder}")
    if saved is None and (folder / "model" / "config.json").exists():
        raise InputError(f"{folder}: holds a trained model and no checkpoint to go on from; name another folder")
    step: int = saved["step"] if saved is not None else 0
    if not mine.agree(step):
        raise InputError(f"{checkpoint}: not every process finds it; out must be on a disk they share")
    # No random state in a checkpoint: order and masks of step n follow from the seed and n.
    model = build(config, tokens, mine)
    objective = objective_of(config, tokens)
    rows = {part: Rows(tokens, part, config.length, mine.device, config.batch) for part in ("train", "valid")}
    batches = Batches(rows["train"], objective, batch=config.batch, seed=config.seed, rank=mine.rank, world=mine.world)
    held_out = fixed(rows["valid"], objective, config.batch, mine.world)
    engine = Engine(model, config, mine)
    if saved is not None:
        engine.restore(saved)
    measured = step if saved is not None else -1  # a checkpoint is written after the evaluation of its step
    records = Records(folder / "metrics.jsonl", measured, writing=mine.rank == 0)
    if saved is not None and (not records.rows or records.rows[-1]["step"] != step):
        raise SourceError(f"{records.path}: no record of step {step}, after which {checkpoint.name} was written")
    evaluated, saving = moments(config)
    losses = torch.zeros(max(1, math.ceil(config.steps / config.evaluations)), device=mine.device)
    since, began = step, time.perf_counter()

    def evaluate() -> dict[str, Any]:
        seen = losses[: step - since].tolist()
        seconds = time.perf_counter() - began
        for number, loss in enumerate(seen, since + 1):
            check(loss, "loss", number)
        with torch.no_grad():
            total = float(sum(model.loss(batch.ids, batch.at, batch.targets) for batch in held_out))
        check(total, "held-out loss", step)
        return {
            "step": step,
            "train_loss": sum(seen) / len(seen) if seen else None,
            "eval_loss": total / len(held_out),
            "max_logit": largest_logit(model, held_out[0].ids[:16]),
            **form(model),
            "steps_per_second": round(len(seen) / seconds, 2) if seen else None,
        }

    def check(loss: float, what: str, number: int) -> None:
        if not math.isfinite(loss):
            kept = f"the last good checkpoint is {checkpoint}" if checkpoint.exists() else "there is no checkpoint yet"
            raise TrainingError(f"{folder}: {what} is {loss} at step {number}; stopped, {kept}", number)

    def save() -> None:
        if mine.rank == 0:
            save_checkpoint(checkpoint, config, {"step": step, "tokens": tokens.digest, **engine.state()})

    while True:
        if step in evaluated and step > measured:
            records.add(evaluate())
            measured = since = step
            if step in saving:
                save()
            if step < config.steps and stop is not None and mine.anyone(stop()):
                save()
                break
            began = time.perf_counter()
        if progress is not None and step % 20 == 0:
            progress(step, config.steps)
        if step >= config.steps:
            break
        losses[step - since] = engine.step(batches.at(step), step)
        step += 1
    run = Run(folder, config, tuple(records.rows))
    if run.finished and config.keep_model and mine.rank == 0:
        save_model(model, folder / "model", Path(tokens.folder), config)
    mine.wait()
    return run


def moments(config: PretrainConfig) -> tuple[set[int], set[int]]:
    """The steps evaluated, the first and the last among them; and those checkpointed, each right after one of these."""
    evaluated = [round(i * config.steps / config.evaluations) for i in range(config.evaluations + 1)]
    asked = (i * config.steps / config.checkpoints for i in range(1, config.checkpoints + 1))
    return set(evaluated), {next(step for step in evaluated if step >= round(wish)) for wish in asked}


def build(config: PretrainConfig, tokens: Tokens, mine: Team) -> Bert:
    """The model at its start: everything outside queries and keys depends on the seed alone."""
    if tokens.vocabulary > config.vocab:
        raise InputError(f"{tokens.folder}: its tokenizer has {tokens.vocabulary} tokens and does not fit a model with "
                         f"vocab = {config.vocab}")  # fmt: skip
    layers, hidden, heads = config.shape
    vocabulary = -(-tokens.vocabulary // 64) * 64  # whole tiles for the output product
    shape = Shape(layers, hidden, heads, config.intermediate or 4 * hidden, vocabulary, config.length,
                  config.objective == "causal")  # fmt: skip
    on_gpu = mine.device.type == "cuda"
    bf16 = config.precision == "bf16" or (config.precision == "auto" and on_gpu)
    compiled = config.compile == "yes" or (config.compile == "auto" and on_gpu)
    model = Bert(shape, torch.bfloat16 if bf16 else torch.float32, compiled)
    model.initialise(config.seed)
    start_(model, config.start, scale=config.scale, seed=config.seed)
    model.to(mine.device)
    return model


def objective_of(config: PretrainConfig, tokens: Tokens) -> Masked | Causal:
    if config.objective == "causal":
        return Causal()
    return Masked(tokens.mask, tokens.special, tokens.vocabulary, config.masked)
