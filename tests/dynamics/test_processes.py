"""Several processes through accelerate train the model that one process trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attngeo.dynamics.pretrain import pretrain
from attngeo.dynamics.processes import Team
from attngeo.dynamics.records import read_records
from tests.conftest import ROOT
from tests.dynamics.small import settings, toml


def test_two_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    """Launched by `accelerate launch`; the first of them prepares the tokens and saves the model."""
    # 7 held-out rows: neither a batch of 8 nor whole shares of one
    shape = {"steps": 40, "lr": 3e-3, "start": "symmetric", "scale": "unit", "length": 20}
    config = toml(tmp_path / "two.toml", settings(tmp_path, **shape, tokens=str(tmp_path / "tokens")))
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
        "--cpu",
    ]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    done = subprocess.run(
        [*launch, "-m", "attngeo", "pretrain", str(config)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("held-out loss") == 1  # one speaks for both
    two = read_records(tmp_path / "run" / "metrics.jsonl")
    one = pretrain(settings(tmp_path, **shape, out=str(tmp_path / "one"))).records
    assert [row["step"] for row in two] == [row["step"] for row in one] == list(range(0, 41, 8))
    for ours, theirs in zip(two, one, strict=True):
        assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], rel=1e-5)
        if theirs["step"]:
            assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_alone() -> None:
    alone = Team(torch.device("cpu"))
    value = torch.tensor(3.0)
    alone.mean_([value])
    assert value == 3 and alone.anyone(True) and not alone.anyone(False) and alone.agree(7)
    alone.wait()
