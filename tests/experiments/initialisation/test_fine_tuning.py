"""The two tasks are what they say, and fine-tuning learns them and leaves the model as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attngeo.training.data.tokens import Tokens, open_tokens
from attngeo.training.pretraining.config import load_config
from attngeo.training.pretraining.engine import ProcessGroup
from attngeo.training.pretraining.pretrain import build_model
from experiments.initialisation.fine_tuning import Budget, fine_tune, pairs
from experiments.initialisation.runs import read_runs
from tests.experiments.initialisation.small_grids import prepare_small_tokens, run_in, small_grid

CLS, SEP = 2, 3


def counting_tokens(folder: Path, documents: int = 60) -> Tokens:
    """Write documents of consecutive numbers: the tokens of document i begin at 10 + 200·i."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [np.r_[CLS, 10 + 200 * i + np.arange(20 + 3 * i), SEP] for i in range(documents)]
    for part in ("train", "valid"):
        np.concatenate(texts).astype(np.uint16).tofile(folder / f"{part}.bin")
    count = sum(map(len, texts))
    return Tokens(str(folder), 16_000, count, count, 4, (0, 1, 2, 3, 4), "x")


@pytest.mark.parametrize("length", [31, 32])
def test_passages_are_in_order_or_swapped(tmp_path: Path, length: int) -> None:
    rows, labels = pairs(counting_tokens(tmp_path), "train", "order", length, 500, 1)
    first = (length - 3) // 2
    assert rows.shape == (500, length) and 200 < labels.sum() < 300
    assert (rows[:, 0] == CLS).all() and (rows[:, first + 1] == SEP).all() and (rows[:, -1] == SEP).all()
    left, right = rows[:, 1 : first + 1], rows[:, first + 2 : -1]
    for passage in (left, right):
        assert (np.diff(passage) == 1).all()  # a passage is one run of text
    in_order = labels == 1
    assert (left[in_order, -1] + 1 == right[in_order, 0]).all()
    assert (right[~in_order, -1] + 1 == left[~in_order, 0]).all()
    assert (pairs(counting_tokens(tmp_path), "train", "order", length, 500, 1)[0] == rows).all()


def test_passages_are_of_one_document_or_of_two(tmp_path: Path) -> None:
    rows, labels = pairs(counting_tokens(tmp_path), "train", "same document", 32, 500, 1)
    left, right = rows[:, 1:15], rows[:, 16:-1]
    same = (left[:, 0] - 10) // 200 == (right[:, 0] - 10) // 200
    assert (same == (labels == 1)).all() and 200 < labels.sum() < 300
    assert not (left[same, 0] == right[same, 0]).any()  # two passages, not one twice
    assert (np.diff(right) == 1).all()


@pytest.mark.parametrize(
    "model", [{}, {"architecture": "modernbert"}, {"architecture": "llama", "objective": "causal"}]
)
def test_fine_tuning_learns_and_restores_the_model(tmp_path: Path, model: dict[str, Any]) -> None:
    tokens = open_tokens(prepare_small_tokens(tmp_path))
    config = load_config({"out": "a", "size": "2x32", "heads": 2, "length": 16, "batch": 32, **model})
    processes = ProcessGroup(torch.device("cpu"))
    built = build_model(config, tokens, processes.device)
    before = {name: weight.clone() for name, weight in built.named_parameters()}
    outcome = fine_tune(built, tokens, config, processes, Budget(steps=5, warmup=1, test_pairs=64))
    assert all(0.2 < outcome[task] < 0.8 for task in ("order", "same document"))
    assert outcome["budget"] == {"steps": 5, "warmup": 1, "lr": 2e-4, "pairs": 160, "test_pairs": 64}
    assert all(torch.equal(weight, before[name]) for name, weight in built.named_parameters())


@pytest.mark.slow
def test_a_task_that_can_be_learnt_is_learnt(tmp_path: Path) -> None:
    """Each document has tokens of its own, so that few tokens say whether two passages are of one document."""
    tokens = counting_tokens(tmp_path)
    config = load_config({"out": "a", "size": "2x32", "heads": 2, "length": 16, "batch": 64})
    built = build_model(config, tokens, torch.device("cpu"))
    outcome = fine_tune(
        built, tokens, config, ProcessGroup(torch.device("cpu")), Budget(steps=150, warmup=10, lr=3e-3, test_pairs=256)
    )
    assert outcome["order"] > 0.6


def test_a_grid_records_the_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_small_tokens(tmp_path)
    monkeypatch.setattr(
        "experiments.initialisation.fine_tuning.Budget", lambda: Budget(steps=2, warmup=1, test_pairs=8)
    )
    assert run_in(tmp_path, small_grid(("baseline",), seeds=1), fine_tuning=True)[0] == 0
    (run,) = read_runs([tmp_path / "runs.jsonl.xz"])
    assert set(run.facts["fine_tuning"]) == {"order", "same document", "budget", "seconds"}
