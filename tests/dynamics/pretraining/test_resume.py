"""A run killed with SIGKILL at any moment, again and again, ends where an undisturbed one ends: bitwise on a CPU."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from attngeo.dynamics.monitoring.records import read_records
from attngeo.dynamics.pretraining.config import load_config
from attngeo.dynamics.pretraining.pretrain import pretrain
from attngeo.errors import SourceError
from tests.dynamics.small_runs import measured, process, settings

# A run that reaches its end waits there: however late the kill comes, it finds the process alive.
TRAIN = """
import json, sys, time
from attngeo.dynamics.pretraining.pretrain import pretrain

def report(done, total):
    if total:
        print(done, flush=True)
        if done == total:
            time.sleep(600)

pretrain(json.loads(sys.argv[1]), progress=report)
"""


def killed(table: dict[str, Any], after: int, wait: float) -> None:
    """Start the run and kill it `wait` seconds after it told of this step."""
    work = process(["-c", TRAIN, json.dumps(table)])
    assert work.stdout is not None
    while int(work.stdout.readline() or after) < after:
        pass
    time.sleep(wait)
    work.kill()
    error = work.communicate()[1]
    assert work.returncode == -signal.SIGKILL, error


def test_killed_at_any_moment_it_ends_with_the_same_losses(tmp_path: Path) -> None:
    shape = {"steps": 120, "evaluations": 24, "checkpoints": 12, "start": "self-attending"}
    table = settings(tmp_path, **shape)
    whole = pretrain(settings(tmp_path, **shape, out=str(tmp_path / "whole")))
    pace = 20 / min(row["steps_per_second"] for row in whole.records if row["steps_per_second"])  # from line to line
    draw, kills = random.Random(), []
    for after in (0, draw.randrange(20, 60), draw.randrange(60, 100)):
        killed(table, after, draw.uniform(0, pace / 2))
        kills.append(read_records(tmp_path / "run" / "metrics.jsonl")[-1]["step"])
    assert pretrain(table).finished
    assert any(0 < step < 120 for step in kills), kills  # at least one hit a run under way
    assert measured(read_records(tmp_path / "run" / "metrics.jsonl")) == measured(whole.records)
    ours, theirs = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("run", "whole"))
    assert ours["step"] == theirs["step"] == 120
    for name, weight in theirs["weights"].items():
        assert torch.equal(ours["weights"][name], weight), name
        for key, value in theirs["moments"][name].items():
            assert torch.equal(ours["moments"][name][key], value), (name, key)
    models = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert models[0] == models[1]


@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_stopped_at_every_evaluation(tmp_path: Path, objective: str) -> None:
    """In one process: every place a checkpoint can be is continued from."""
    whole = pretrain(settings(tmp_path, objective=objective, out=str(tmp_path / "whole")))
    table = settings(tmp_path, objective=objective, checkpoints=0)
    for _ in range(10):
        run = pretrain(table, stop=lambda: True)
        if run.finished:
            break
    assert measured(run.records) == measured(whole.records)


def test_a_line_cut_off_and_lines_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    table = settings(tmp_path)
    stops = iter([False, False, True])
    pretrain(table, stop=lambda: next(stops))
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step":12,"eval_loss":0.0}\n{"step":1')
    resumed = pretrain(table)
    whole = pretrain(settings(tmp_path, out=str(tmp_path / "whole")))
    assert measured(resumed.records) == measured(whole.records) == measured(read_records(path))


@pytest.mark.parametrize("lost", [1, 99])
def test_records_that_are_lost_are_missed(tmp_path: Path, lost: int) -> None:
    """A finished run, its last lines or its whole file gone: it is said, and what is left stays."""
    table = settings(tmp_path)
    pretrain(table)
    path = tmp_path / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-lost]))
    if lost > len(lines):
        path.unlink()
    with pytest.raises(
        SourceError, match=r"metrics\.jsonl: no record of step 20, after which checkpoint\.pt was written"
    ):
        pretrain(table)
    path.write_text("".join(lines))
    assert len(pretrain(table).records) == len(lines)


def test_a_checkpoint_cut_short_while_it_is_written_is_not_the_checkpoint(tmp_path: Path) -> None:
    table = settings(tmp_path)
    pretrain(table, stop=lambda: True)
    (tmp_path / "run" / ".checkpoint.pt.part").write_bytes(b"half of it")
    assert pretrain(table).finished
    assert not (tmp_path / "run" / ".checkpoint.pt.part").exists()


def test_fingerprints_do_not_change() -> None:
    """Checkpoints of earlier versions stay theirs: a default that changes its value must not go unnoticed."""
    assert (
        load_config({"out": "a"}).fingerprint == load_config({"out": "b", "compile": "no", "train": ["c"]}).fingerprint
    )
    assert load_config({"out": "a", "seed": 1}).fingerprint != load_config({"out": "a"}).fingerprint
