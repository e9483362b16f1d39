"""A run that is killed at any moment ends with the same bits as an undisturbed one on a CPU."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from attngeo.errors import SourceError
from attngeo.training.monitoring.records import read_records
from attngeo.training.pretraining.config import load_config
from attngeo.training.pretraining.pretrain import pretrain
from tests.training.small_runs import run_settings, start_python, without_speed

# A run that reaches its end waits there: however late the kill comes, it finds the process alive.
TRAIN = """
import json, sys, time
from attngeo.training.pretraining.pretrain import pretrain

def report(done, total):
    if total:
        print(done, flush=True)
        if done == total:
            time.sleep(600)

pretrain(json.loads(sys.argv[1]), progress=report)
"""


def start_and_kill(table: dict[str, Any], after: int, wait: float) -> None:
    """Start the run and kill it `wait` seconds after it reported step `after`."""
    work = start_python(["-c", TRAIN, json.dumps(table)])
    assert work.stdout is not None
    while int(work.stdout.readline() or after) < after:
        pass
    time.sleep(wait)
    work.kill()
    error = work.communicate()[1]
    assert work.returncode == -signal.SIGKILL, error


def test_a_run_killed_at_any_moment_ends_with_the_same_losses(tmp_path: Path) -> None:
    shape = {"steps": 60, "evaluations": 12, "checkpoints": 12, "start": "self-attending"}
    table = run_settings(tmp_path, **shape)
    whole = pretrain(run_settings(tmp_path, **shape, out=str(tmp_path / "whole")))
    speeds = [row["steps_per_second"] for row in whole.records if row["steps_per_second"]]
    seconds = 20 / min(speeds)  # between two reports
    start_and_kill(table, random.choice((0, 20, 40)), random.uniform(0, seconds))
    assert pretrain(table).finished
    assert without_speed(read_records(tmp_path / "run" / "metrics.jsonl")) == without_speed(whole.records)
    ours, theirs = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("run", "whole"))
    assert ours["step"] == theirs["step"] == 60
    for name, weight in theirs["weights"].items():
        assert torch.equal(ours["weights"][name], weight), name
        for key, value in theirs["moments"][name].items():
            assert torch.equal(ours["moments"][name][key], value), (name, key)
    models = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert models[0] == models[1]


def test_what_a_killed_run_left_incomplete_or_wrote_after_its_checkpoint_is_dropped(tmp_path: Path) -> None:
    table = run_settings(tmp_path)
    stops = iter([False, False, True])
    pretrain(table, stop=lambda: next(stops))
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step":12,"eval_loss":0.0}\n{"step":1')
    (tmp_path / "run" / ".part-0123456789abcdef").write_bytes(b"half of a checkpoint")
    resumed = pretrain(table)
    whole = pretrain(run_settings(tmp_path, out=str(tmp_path / "whole")))
    assert without_speed(resumed.records) == without_speed(whole.records) == without_speed(read_records(path))
    assert not list((tmp_path / "run").glob(".part-*"))


def test_missing_records_are_an_error(tmp_path: Path) -> None:
    """The last records of a finished run, or all of them, are gone: an error says so, and the rest stays."""
    table = run_settings(tmp_path, steps=4)
    pretrain(table)
    path = tmp_path / "run" / "metrics.jsonl"
    text = path.read_text()
    path.unlink()
    with pytest.raises(SourceError, match=r"metrics\.jsonl: no record of step 4, after which checkpoint\.pt was"):
        pretrain(table)
    path.write_text(text)
    assert len(pretrain(table).records) == len(text.splitlines())


def test_only_settings_that_change_the_result_make_another_run() -> None:
    same, other = load_config({"out": "b", "compile": "no", "train": ["c"]}), load_config({"out": "a", "seed": 1})
    assert load_config({"out": "a"}).fingerprint == same.fingerprint != other.fingerprint
