"""Several processes through accelerate train the model that one process trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attngeo.dynamics.monitoring.records import read_records
from attngeo.dynamics.pretraining.pretrain import pretrain
from attngeo.dynamics.pretraining.processes import Team
from tests.conftest import ROOT
from tests.dynamics.small_runs import settings, toml


def test_two_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    """Started by torchrun, which `accelerate launch` is for GPUs; the first prepares the tokens and saves the model."""
    # 7 held-out rows: neither a batch of 8 nor whole shares of one
    shape = {"steps": 40, "lr": 3e-3, "start": "symmetric", "scale": "unit", "length": 20}
    said = started(tmp_path, toml(tmp_path / "two.toml", settings(tmp_path, **shape)))
    assert said[0].count("held-out loss") == 1 and said[1] == ""  # one speaks for both
    two = read_records(tmp_path / "run" / "metrics.jsonl")
    one = pretrain(settings(tmp_path, **shape, out=str(tmp_path / "one"))).records
    assert [row["step"] for row in two] == [row["step"] for row in one] == list(range(0, 41, 8))
    for ours, theirs in zip(two, one, strict=True):
        assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], rel=1e-5)
        if theirs["step"]:
            assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def started(folder: Path, config: Path) -> list[str]:
    """Two processes train on the CPU; what each of them printed. `accelerate launch --cpu` would start only one."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--redirects", "3",
         "--log-dir", str(folder / "logs"), "-m", "attngeo", "pretrain", str(config)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )  # fmt: skip
    logs = sorted((folder / "logs").glob("*/attempt_0/*/stdout.log"))
    errors = [log.with_name("stderr.log").read_text() for log in logs]
    assert done.returncode == 0, (done.stderr, errors)
    assert [log.parent.name for log in logs] == ["0", "1"]
    return [log.read_text() for log in logs]


def test_alone() -> None:
    alone = Team(torch.device("cpu"))
    value = torch.tensor(3.0)
    alone.mean_([value])
    assert value == 3 and alone.anyone(True) and not alone.anyone(False) and alone.agree(7)
    alone.wait()
