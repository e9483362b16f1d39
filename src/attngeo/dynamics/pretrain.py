"""`pretrain`: a config in, a trained model with its records out; killed at any moment, it goes on where it was."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attngeo.dynamics.batches import Batches, Causal, Masked, Rows, fixed
from attngeo.dynamics.bert import Bert, Shape
from attngeo.dynamics.config import PretrainConfig, load_config
from attngeo.dynamics.engine import Engine
from attngeo.dynamics.processes import Team, team
from attngeo.dynamics.starts import start_
from attngeo.dynamics.store import Records, load_checkpoint, save_checkpoint, save_model
from attngeo.dynamics.tokens import Tokens, open_tokens, prepare
from attngeo.dynamics.watch import form, largest_logit
from attngeo.errors import AttngeoError, InputError

Progress = Callable[[int, int | None], None]


class TrainingError(AttngeoError):
    """A run that cannot go on."""


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
    progress  called with (steps done, steps in all)
    stop      asked at every evaluation; when true the run is checkpointed and returned unfinished

    >>> run = attngeo.pretrain({"out": "runs/a", "train": ["corpus.txt"], "size": "4x256", "start": "symmetric"})
    >>> AutoModelForMaskedLM.from_pretrained("runs/a/model")
    """
    config = load_config(config)
    mine = team()
    if mine.rank == 0:
        tokens = prepared(config)
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
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint.pt"
    saved = load_checkpoint(checkpoint, config)
    if saved is not None and saved["tokens"] != tokens.digest:
        raise InputError(f"{checkpoint}: was trained on other tokens than {tokens.folder}")
    model = build(config, tokens, mine)
    objective = objective_of(config, tokens)
    batches = Batches(
        Rows(tokens, "train", config.length, mine.device, config.batch),
        objective,
        batch=config.batch,
        seed=config.seed,
        rank=mine.rank,
        world=mine.world,
    )
    held_out = fixed(
        Rows(tokens, "valid", config.length, mine.device, config.batch), objective, config.batch // mine.world
    )
    engine = Engine(model, config, mine)
    step = 0
    if saved is not None:
        engine.restore(saved)
        step = saved["step"]
    records = Records(folder / "metrics.jsonl", step) if mine.rank == 0 else None
    rows: list[dict[str, Any]] = records.rows if records is not None else []
    evaluated = {round(i * config.steps / config.evaluations) for i in range(config.evaluations + 1)}
    saving = {round(i * config.steps / config.checkpoints) for i in range(1, config.checkpoints + 1)} & evaluated
    losses = torch.zeros(max(1, math.ceil(config.steps / config.evaluations)), device=mine.device)
    since, began = step, time.perf_counter()

    def evaluate() -> dict[str, Any]:
        nonlocal since, began
        seen = losses[: step - since].tolist()
        bad = next((i for i, loss in enumerate(seen) if not math.isfinite(loss)), None)
        if bad is not None:
            kept = f"the last good checkpoint is {checkpoint}" if checkpoint.exists() else "there is no checkpoint yet"
            raise TrainingError(f"{folder}: loss is {seen[bad]} at step {since + bad + 1}; stopped, {kept}")
        rate = (step - since) / (time.perf_counter() - began) if seen else None
        with torch.no_grad():
            total = sum(model.loss(batch.ids, batch.at, batch.targets) for batch in held_out)
        row: dict[str, Any] = {
            "step": step,
            "train_loss": sum(seen) / len(seen) if seen else None,
            "eval_loss": float(total) / len(held_out),
            "max_logit": largest_logit(model, held_out[0].ids[:16]),
            **form(model),
            "steps_per_second": rate and round(rate, 2),
        }
        since, began = step, time.perf_counter()
        return row

    def save() -> None:
        if mine.rank == 0:
            save_checkpoint(checkpoint, config, {"step": step, "tokens": tokens.digest, **engine.state()})

    while True:
        if step in evaluated and (not rows or rows[-1]["step"] < step):
            row = evaluate()
            rows.append(row) if records is None else records.add(row)
            if step in saving:
                save()
            if step < config.steps and stop is not None and stop():
                save()
                break
        if progress is not None and step % 20 == 0:
            progress(step, config.steps)
        if step >= config.steps:
            break
        losses[step - since] = engine.step(batches.at(step), step)
        step += 1
    run = Run(folder, config, tuple(rows))
    if run.finished and config.keep_model and mine.rank == 0:
        save_model(model, folder / "model", Path(tokens.folder))
    mine.wait()
    return run


def build(config: PretrainConfig, tokens: Tokens, mine: Team) -> Bert:
    """The model at its start: everything outside queries and keys depends on the seed alone."""
    if config.tokenizer == "train" and tokens.vocabulary > config.vocab:
        raise InputError(f"{tokens.folder}: its tokenizer has {tokens.vocabulary} tokens, vocab is {config.vocab}")
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
