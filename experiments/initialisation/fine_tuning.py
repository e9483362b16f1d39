"""Fine-tune a model right after its pre-training on two tasks made from the same text, and measure its accuracy.

    order            two passages that follow each other: in order, or swapped?
    same document    two passages: from one document, or from two?

A passage is a run of tokens of about half a row. Training pairs come from the training text, test pairs from the
held-out text. All models get the same pairs, the same number of steps and the same learning rate.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from attngeo.errors import InputError
from attngeo.training.data.tokens import Part, Tokens
from attngeo.training.pretraining.architectures import Model
from attngeo.training.pretraining.batches import Batch
from attngeo.training.pretraining.config import PretrainConfig
from attngeo.training.pretraining.engine import Engine, ProcessGroup
from attngeo.training.pretraining.model import SelectRows

Task = Literal["order", "same document"]
TASKS: tuple[Task, ...] = ("order", "same document")
_SEED = 20_261_116


@dataclass(frozen=True)
class Budget:
    """What every model gets for each task."""

    steps: int = 400
    warmup: int = 40
    lr: float = 2e-4
    test_pairs: int = 4_096


def fine_tune(
    model: Model, tokens: Tokens, config: PretrainConfig, processes: ProcessGroup, budget: Budget | None = None
) -> dict[str, Any]:
    """Return the test accuracy of each task; the weights of the model are restored between tasks and at the end.

    config: of the pre-training; rows per step, precision and AdamW's settings are taken from it
    """
    budget = budget or Budget()
    began = time.monotonic()
    changes = {"steps": budget.steps, "warmup": budget.warmup, "lr": budget.lr}
    settings = config.with_changes(**changes)
    pretrained = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    outcome: dict[str, Any] = {}
    for task in TASKS:
        train = pairs(tokens, "train", task, settings.length, budget.steps * settings.batch, _SEED + config.seed)
        test = pairs(tokens, "valid", task, settings.length, budget.test_pairs, _SEED)
        outcome[task] = round(_accuracy_after_training(model, settings, processes, train, test), 5)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(pretrained[name])
    return outcome | {"budget": {**changes, "pairs": budget.steps * settings.batch, "test_pairs": budget.test_pairs},
                      "seconds": round(time.monotonic() - began, 1)}  # fmt: skip


def pairs(
    tokens: Tokens, part: Part, task: Task, length: int, count: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows [count, length], [CLS] passage [SEP] passage [SEP], and labels [count]: 1 in order, of one document.

    Documents are drawn uniformly among those that are long enough, then a place within the document.
    """
    ids = np.asarray(tokens.array(part))
    cls, sep = ids[0], ids[-1]
    first = (length - 3) // 2
    second = length - 3 - first  # first or first + 1 tokens
    chunk = second
    begins = np.flatnonzero(ids == cls)  # [documents]
    ends = np.append(begins[1:], len(ids))
    chunks = (ends - begins - 2) // chunk  # [documents], whole passages between [CLS] and [SEP]
    long = chunks >= 2
    begins, chunks = begins[long], chunks[long]
    if len(begins) < 2:
        raise InputError(f"{tokens.folder}/{part}.bin: {len(begins)} documents of two passages of {chunk} tokens; "
                         "fine-tuning needs at least 2")  # fmt: skip
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, count)  # [count]
    document = draw.integers(0, len(begins), count)
    place = (draw.random(count) * (chunks[document] - (task == "order"))).astype(np.int64)  # a chunk of the document
    one = begins[document] + 1 + place * chunk  # [count], where the passage begins in the file
    if task == "order":
        middle = one + np.where(labels == 1, first, second)  # the second passage follows without a gap
        left, right = np.where(labels == 1, one, middle), np.where(labels == 1, middle, one)
    else:
        distance = 1 + (draw.random(count) * (chunks[document] - 1)).astype(np.int64)
        same = begins[document] + 1 + (place + distance) % chunks[document] * chunk
        other = (document + 1 + draw.integers(0, len(begins) - 1, count)) % len(begins)
        elsewhere = begins[other] + 1 + (draw.random(count) * chunks[other]).astype(np.int64) * chunk
        left, right = one, np.where(labels == 1, same, elsewhere)
    rows = np.empty((count, length), np.int64)
    rows[:, 0], rows[:, first + 1], rows[:, -1] = cls, sep, sep
    rows[:, 1 : first + 1] = ids[left[:, None] + np.arange(first)]
    rows[:, first + 2 : -1] = ids[right[:, None] + np.arange(second)]
    return rows, labels


class Classifier(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A model with a linear map from one token of a row to two classes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        device = next(model.parameters()).device
        draw = torch.Generator().manual_seed(_SEED)
        weight = torch.randn(2, model.shape.hidden, generator=draw) * 0.02
        self.weight, self.bias = nn.Parameter(weight.to(device)), nn.Parameter(torch.zeros(2, device=device))
        self.shape = model.shape

    def logits(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the logits [rows, 2] of rows ids [rows, length], read at `positions` [rows] of the flattened rows."""
        x = SelectRows.apply(self.model.encode(ids).flatten(0, 1), positions)  # [rows, d]
        x = self.model.final_norm(x, self.model.head_weights)
        return F.linear(x.float(), self.weight, self.bias)

    def loss(self, ids: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats; targets: [rows], classes."""
        return F.cross_entropy(self.logits(ids, positions), targets)


def _accuracy_after_training(
    model: Model,
    config: PretrainConfig,
    processes: ProcessGroup,
    train: tuple[NDArray[np.int64], NDArray[np.int64]],
    test: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> float:
    """Train a classifier on the training pairs, each seen once, and return its accuracy on the test pairs."""
    device, batch = processes.device, config.batch
    # A causal model has read the whole row at its last token only.
    read = config.length - 1 if model.shape.causal else 0
    positions = torch.arange(batch, device=device) * config.length + read  # [rows]
    ids, labels = (torch.from_numpy(part).to(device) for part in train)
    classifier = Classifier(model)
    engine = Engine(classifier, config, processes)
    for step in range(config.steps):
        some = slice(step * batch, (step + 1) * batch)
        engine.step(Batch(ids[some], positions, labels[some]), step)
    ids, labels = (torch.from_numpy(part).to(device) for part in test)
    count = len(ids) // batch * batch or len(ids)  # whole batches: equal shapes need one compilation
    right = 0
    with torch.no_grad():
        for some, answers in zip(ids[:count].split(batch), labels[:count].split(batch), strict=True):
            right += int((classifier.logits(some, positions[: len(some)]).argmax(-1) == answers).sum())
    return right / count
