"""track: checkpoints scored in order of step, continued after a kill, with unreadable ones named and left out."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from attngeo.cli import app
from attngeo.errors import AttngeoError, InputError, SourceError
from attngeo.training.monitoring import RecordFile, find_checkpoints, read_records, track
from tests.training.monitoring.record_checks import (
    CONFIG,
    difference,
    random_weights,
    recorded_steps,
    save_checkpoint,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for step in (500, 1000, 100):
        save_checkpoint(folder, step)
    (folder / "runs").mkdir()  # other content of a run's folder
    (folder / "README.md").write_text("checkpoint-7")
    save_checkpoint(folder, 1000, "tmp-checkpoint-{}")
    save_checkpoint(folder, 1500, ".checkpoint-{}")
    return folder


def run_track(*words: Any) -> Any:
    """Run `attngeo track` with these arguments."""
    return CliRunner().invoke(app, ["track", *map(str, words)])


def test_every_checkpoint_is_scored_in_order_of_step(run: Path) -> None:
    rows = track(run)
    assert [row["step"] for row in rows] == recorded_steps(run / "attngeo.jsonl") == [100, 500, 1000]
    assert all(difference(row, run / f"checkpoint-{row['step']}") <= 1e-6 for row in rows)
    query, key = (random_weights(500)[f"encoder.layer.1.attention.self.{side}.weight"] for side in ("query", "key"))
    form = query.T.astype(np.float64) @ key
    assert rows[1]["norm"][1] == pytest.approx(np.linalg.norm(form), rel=1e-5)
    for name, axis in (("row_spread", 1), ("column_spread", 0)):
        norms = np.linalg.norm(form, axis=axis)
        assert rows[1][name][1] == pytest.approx(norms.std(ddof=1) / norms.mean(), rel=1e-5)
    assert [row["step"] for row in track(run, run / "some.jsonl", every=500)] == [500, 1000]


@pytest.mark.parametrize("name", ["step-{}", "step_{}", "ckpt-{}", "global_step{}", "epoch=0-step={}", "iter_{}"])
def test_common_names_of_checkpoints_are_found(tmp_path: Path, name: str) -> None:
    save_checkpoint(tmp_path, 30, name)
    save_checkpoint(tmp_path, 4, name)
    assert [saved.step for saved in find_checkpoints(tmp_path)] == [4, 30]


def test_track_continues_where_it_stopped(run: Path) -> None:
    track(run)
    before = (run / "attngeo.jsonl").read_bytes()
    with open(run / "attngeo.jsonl", "ab") as file:
        file.write(b'{"step": 2000, "st')  # killed while writing
    shutil.rmtree(run / "checkpoint-100")  # a Trainer keeps only the last few
    save_checkpoint(run, 2000)
    save_checkpoint(run, 700)
    rows = track(run)
    assert [row["step"] for row in rows] == [100, 500, 700, 1000, 2000]
    kept = [line for line in (run / "attngeo.jsonl").read_bytes().splitlines() if b'"step":7' not in line][:3]
    assert kept == before.splitlines()
    assert rows == read_records(run / "attngeo.jsonl")


def scored_again(run: Path) -> list[str]:
    """Return the lines that `track` says about the checkpoints of a run."""
    lines: list[str] = []
    track(run, say=lines.append)
    return lines


@pytest.mark.parametrize("step", [100, 1000])
def test_a_checkpoint_that_was_written_again_is_scored_again(run: Path, step: int) -> None:
    before = track(run)
    run = run.rename(run.with_name("renamed"))
    assert scored_again(run) == []
    shutil.rmtree(run / f"checkpoint-{step}")
    save_checkpoint(run, step, run=1)
    assert scored_again(run) == [f"checkpoint-{step}: scored again, because its files have changed"]
    after = read_records(run / "attngeo.jsonl")
    assert [new["step"] for old, new in zip(before, after, strict=True) if new != old] == [step]
    assert all(difference(row, run / f"checkpoint-{row['step']}") <= 1e-6 for row in after)


def test_files_of_weights_are_scored_with_the_config_of_the_run(tmp_path: Path) -> None:
    for step in (10, 20):
        save_file(random_weights(step), tmp_path / f"model_step_{step}.safetensors")
    assert track(tmp_path, heads=True)[0].get("head_symmetry") is None  # the number of heads is unknown
    (tmp_path / "attngeo.jsonl").unlink()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert len(track(tmp_path)[0]["head_symmetry"][0]) == 4
    save_file(random_weights(20, run=1), tmp_path / "model_step_20.safetensors")
    assert scored_again(tmp_path) == ["model_step_20.safetensors: scored again, because its files have changed"]


def test_records_of_a_monitor_are_kept(run: Path) -> None:
    """They have no state of files: a Monitor measures a model that is not in a file."""
    rows = [{key: value for key, value in row.items() if key != "files"} for row in track(run)]
    (run / "attngeo.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert track(run) == rows


def test_track_killed_and_restarted_writes_the_same_file(tmp_path: Path) -> None:
    folder, moment = tmp_path / "run", 3
    for step in range(1, 7):
        save_checkpoint(folder, step)
    code = (  # it needs no torch
        "import os, signal, sys; sys.modules['torch'] = None; import attngeo\n"
        f"attngeo.track({str(folder)!r}, progress=lambda done, _: done == {moment} "
        "and os.kill(os.getpid(), signal.SIGKILL))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert recorded_steps(folder / "attngeo.jsonl") == list(range(1, moment + 1))
    track(folder)
    track(folder, tmp_path / "uninterrupted.jsonl")
    assert (folder / "attngeo.jsonl").read_bytes() == (tmp_path / "uninterrupted.jsonl").read_bytes()


def test_the_final_model_of_attngeo_pretrain_is_scored(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 0, "model")
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 90}\n')
    assert [row["step"] for row in track(tmp_path)] == [90]


def test_track_draws_the_curves_of_its_records(run: Path) -> None:
    result = run_track(run, "--figure", run / "curves.png")
    assert result.exit_code == 0 and (run / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert f"attngeo: drew {run / 'curves.png'}" in result.stderr


# ---- records of something else


def test_records_of_other_heads_layers_and_runs_are_refused_and_kept(run: Path, tmp_path: Path) -> None:
    other, deeper, records = tmp_path / "other", tmp_path / "deeper", run / "attngeo.jsonl"
    save_checkpoint(other, 500, run=1)
    save_checkpoint(other, 900, run=1)
    save_checkpoint(deeper, 7, layers=3)

    def refused(folder: Path, message: str, **options: Any) -> None:
        before = records.read_bytes()
        with pytest.raises(InputError, match=message):
            track(folder, records, **options)
        assert records.read_bytes() == before

    track(run, heads=False)
    refused(run, r"at step 1000: 0 heads in its first layer where checkpoint-1000 has 4 \(see --no-heads")
    assert len(track(run, heads=False)) == 3
    records.unlink()
    track(run, layers=[1])
    for layers in (None, [0]):
        refused(run, "encoder layers 1 where encoder layers 0.* of checkpoint-1000 are selected", layers=layers)
    assert track(run, layers=[1])[0]["layer"] == [1]
    records.unlink()
    track(run)
    refused(other, "holds another run, or other layers or heads, at step 500: a symmetry of")
    refused(deeper, "encoder layers 0, 1 where encoder layers 0, 1, 2 of checkpoint-7 are selected")
    assert "head_symmetry" in track(run, heads=False)[0]  # more than was asked for
    for folder in run.glob("checkpoint-*"):
        (folder / "config.json").unlink()  # which declares 4 heads
    assert len(track(run, num_heads=4, unproven=True)) == 3
    refused(run, "4 heads in its first layer where checkpoint-1000 has 2", num_heads=2, unproven=True)


def test_a_file_that_holds_no_records_is_refused_and_kept(run: Path) -> None:
    for text, line in (("a list of groceries", 1), ('{"step": 1}\n[2]\n', 2), ('{"step": 1, "norm": 3.0}', 1)):
        (run / "attngeo.jsonl").write_text(text)
        result = run_track(run)
        assert result.exit_code == 2 and f"line {line} is not a record" in result.stderr
        assert len(result.stderr.splitlines()) == 1 and (run / "attngeo.jsonl").read_text() == text


def test_steps_that_no_checkpoint_has_and_a_file_that_cannot_be_written_are_refused(run: Path) -> None:
    with pytest.raises(SourceError, match="no checkpoint at a step that is a multiple of 7"):
        track(run, every=7)
    with pytest.raises(AttngeoError, match="cannot be written"):
        track(run, run / "nowhere" / "records.jsonl")


def test_two_writers_of_one_file_keep_the_records_of_each_other(tmp_path: Path) -> None:
    """Checkpoints are scored during training; neither loses the records of the other."""
    path = tmp_path / "a.jsonl"
    monitor = RecordFile(path)
    for step in (0, 100, 200):
        monitor.add({"step": step})
    tracking = RecordFile(path)
    tracking.add({"step": 50})
    monitor.add({"step": 300})
    tracking.add({"step": 250})
    assert recorded_steps(path) == [0, 50, 100, 200, 250, 300]


def test_a_line_that_was_cut_short_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    """A disk that is full takes the beginning of a line; when there is space again, the file has to be sound."""
    path = tmp_path / "a.jsonl"
    records = RecordFile(path)
    records.add({"step": 0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path) + 5, limits[1]))
    try:
        with pytest.raises(AttngeoError, match=r"a\.jsonl: cannot be written"):
            records.add({"step": 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    records.add({"step": 200})
    assert recorded_steps(path) == [0, 100, 200]


# ---- what cannot be read


def test_an_incomplete_newest_checkpoint_is_left_out_without_an_error(run: Path) -> None:
    path = save_checkpoint(run, 3000) / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    result = run_track(run)
    assert result.exit_code == 0 and "checkpoint-3000: left out" in result.stderr
    assert recorded_steps(run / "attngeo.jsonl") == [100, 500, 1000]
    shutil.copy(save_checkpoint(run.parent / "x", 3000) / "model.safetensors", path)
    assert run_track(run).exit_code == 0 and recorded_steps(run / "attngeo.jsonl")[-1] == 3000


def test_an_unreadable_older_checkpoint_is_named_and_the_others_are_scored(run: Path) -> None:
    for step in (500, 1000):
        (run / f"checkpoint-{step}" / "model.safetensors").write_bytes(b"half")
    result = run_track(run)
    last = result.stderr.strip().splitlines()[-1]
    assert result.exit_code == 2 and last.startswith("attngeo: error: ") and "500/model.safetensors" in last
    assert "and 1 more; 1 of 3 checkpoints" in last and recorded_steps(run / "attngeo.jsonl") == [100]


def test_folders_without_readable_checkpoints_are_an_error(tmp_path: Path) -> None:
    for folder, message in [(tmp_path, "no checkpoints"), (tmp_path / "nowhere", "cannot be listed")]:
        result = run_track(folder)
        assert result.exit_code == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
    (tmp_path / "checkpoint-1").mkdir()
    result = run_track(tmp_path)
    assert result.exit_code == 2 and "checkpoint-1: is empty" in result.stderr


def test_two_checkpoints_of_one_step_are_refused(run: Path) -> None:
    save_checkpoint(run, 500, "step-{}")
    with pytest.raises(InputError, match="checkpoint-500 and step-500 are both of step 500"):
        track(run)
