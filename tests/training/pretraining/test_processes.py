"""Several processes train the model that one process trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attngeo.training.monitoring.records import read_records
from attngeo.training.pretraining.pretrain import pretrain
from tests.conftest import ROOT
from tests.training.small_runs import run_settings, write_toml


def test_two_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    """Started by torchrun, as `accelerate launch` does for GPUs; the first prepares the tokens and saves the model."""
    # 7 held-out rows: they fill neither a batch of 8 nor equal shares of one
    shape = {"steps": 20, "lr": 3e-3, "start": "symmetric", "scale": "unit", "length": 20}
    printed = train_in_two_processes(tmp_path, write_toml(tmp_path / "two.toml", run_settings(tmp_path, **shape)))
    assert printed[0].count("held-out loss") == 1 and printed[1] == ""  # only the first prints
    two = read_records(tmp_path / "run" / "metrics.jsonl")
    one = pretrain(run_settings(tmp_path, **shape, out=str(tmp_path / "one"))).records
    assert [row["step"] for row in two] == [row["step"] for row in one] == list(range(0, 21, 4))
    for ours, theirs in zip(two, one, strict=True):
        assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], rel=1e-5)
        if theirs["step"]:
            assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def train_in_two_processes(folder: Path, config: Path) -> list[str]:
    """Train on the CPU and return what each process printed. `accelerate launch --cpu` would start one process only."""
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
