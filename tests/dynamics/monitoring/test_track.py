"""`attngeo track`: checkpoints of a run scored in order, resumed after a kill, bad ones named and left out."""

from __future__ import annotations

import json
import os
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
from attngeo.dynamics.monitoring.records import RecordFile, read_records
from attngeo.dynamics.monitoring.track import checkpoints, track
from attngeo.errors import AttngeoError, InputError, SourceError
from tests.dynamics.monitoring.monitored import off

CONFIG = {"model_type": "bert", "num_attention_heads": 4, "hidden_size": 32, "num_hidden_layers": 2}


def weights(step: int, layers: int = 2, run: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng([run, step])
    return {
        f"encoder.layer.{layer}.attention.self.{side}.weight": draw.standard_normal((32, 32)).astype(np.float32)
        for layer in range(layers)
        for side in ("query", "key", "value")
    }


def save(folder: Path, step: int, name: str = "checkpoint-{}", **other: Any) -> Path:
    path = folder / name.format(step)
    path.mkdir(parents=True)
    save_file(weights(step, **other), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for step in (500, 1000, 100):
        save(folder, step)
    (folder / "runs").mkdir()  # whatever else a run leaves
    (folder / "README.md").write_text("checkpoint-7")
    return folder


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def cli(*words: Any) -> Any:
    return CliRunner().invoke(app, ["track", *map(str, words)])


def test_every_checkpoint_in_order_of_step(run: Path) -> None:
    rows = track(run)
    assert [row["step"] for row in rows] == steps(run / "attngeo.jsonl") == [100, 500, 1000]
    for row in rows:
        assert off(row, run / f"checkpoint-{row['step']}") <= 1e-6
    form = (weights(500)["encoder.layer.1.attention.self.query.weight"].T.astype(np.float64)
            @ weights(500)["encoder.layer.1.attention.self.key.weight"])  # fmt: skip
    rows_norm, columns = np.linalg.norm(form, axis=1), np.linalg.norm(form, axis=0)
    assert rows[1]["row_spread"][1] == pytest.approx(rows_norm.std(ddof=1) / rows_norm.mean(), rel=1e-5)
    assert rows[1]["column_spread"][1] == pytest.approx(columns.std(ddof=1) / columns.mean(), rel=1e-5)


def test_it_goes_on_where_it_stopped(run: Path) -> None:
    track(run)
    before = (run / "attngeo.jsonl").read_bytes()
    with open(run / "attngeo.jsonl", "ab") as file:
        file.write(b'{"step": 2000, "st')  # killed while writing
    shutil.rmtree(run / "checkpoint-100")  # a Trainer keeps only the last few
    save(run, 2000)
    save(run, 700)
    rows = track(run)
    assert [row["step"] for row in rows] == [100, 500, 700, 1000, 2000]
    kept = [line for line in (run / "attngeo.jsonl").read_bytes().splitlines() if b'"step":7' not in line][:3]
    assert kept == before.splitlines()
    assert rows == read_records(run / "attngeo.jsonl")


@pytest.mark.parametrize("moment", [0, 1, 5])
def test_killed_it_ends_the_same(tmp_path: Path, moment: int) -> None:
    folder = tmp_path / "run"
    for step in range(1, 7):
        save(folder, step)
    code = (
        "import os, signal; from attngeo.dynamics.monitoring.track import track\n"
        f"track({str(folder)!r}, progress=lambda done, _: done == {moment} and os.kill(os.getpid(), signal.SIGKILL))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert steps(folder / "attngeo.jsonl") == list(range(1, moment + 1))
    track(folder)
    track(folder, tmp_path / "straight.jsonl")
    assert (folder / "attngeo.jsonl").read_bytes() == (tmp_path / "straight.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["step-{}", "step_{}", "ckpt-{}", "global_step{}", "epoch=0-step={}", "iter_{}"])
def test_names_of_checkpoints(tmp_path: Path, name: str) -> None:
    save(tmp_path, 30, name)
    save(tmp_path, 4, name)
    assert [saved.step for saved in checkpoints(tmp_path)] == [4, 30]


def test_files_of_weights_with_the_config_of_the_run(tmp_path: Path) -> None:
    for step in (10, 20):
        save_file(weights(step), tmp_path / f"model_step_{step}.safetensors")
    assert track(tmp_path, heads=True)[0].get("head_symmetry") is None  # nothing says how many heads there are
    (tmp_path / "attngeo.jsonl").unlink()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert len(track(tmp_path)[0]["head_symmetry"][0]) == 4


def test_pickles(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = save(tmp_path, 5)
    (folder / "model.safetensors").unlink()
    torch.save({name: torch.from_numpy(value) for name, value in weights(5).items()}, folder / "pytorch_model.bin")
    torch.save({"state": {}}, folder / "optimizer.pt")
    assert off(track(tmp_path)[0], folder) <= 1e-6


def test_the_model_a_pretraining_left(tmp_path: Path) -> None:
    save(tmp_path, 0, "model")
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 90}\n')
    assert [row["step"] for row in track(tmp_path)] == [90]


def test_only_every_nth(run: Path) -> None:
    assert [row["step"] for row in track(run, every=500)] == [500, 1000]
    with pytest.raises(SourceError, match="multiple of 7"):
        track(run, every=7)


def test_the_newest_may_be_half_written(run: Path) -> None:
    path = save(run, 3000) / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    result = cli(run)
    assert result.exit_code == 0 and "checkpoint-3000: left out" in result.stderr
    assert steps(run / "attngeo.jsonl") == [100, 500, 1000]
    shutil.copy(save(run.parent / "x", 3000) / "model.safetensors", path)
    assert cli(run).exit_code == 0 and steps(run / "attngeo.jsonl")[-1] == 3000


def test_a_broken_one_is_named_and_the_rest_kept(run: Path) -> None:
    path = run / "checkpoint-500" / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    result = cli(run)
    last = result.stderr.strip().splitlines()[-1]
    assert result.exit_code == 2 and last.startswith("attngeo: error: ") and "checkpoint-500" in last
    assert "2 of 3" in last and steps(run / "attngeo.jsonl") == [100, 1000]


def test_only_broken_ones(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1").mkdir()
    result = cli(tmp_path)
    assert result.exit_code == 2 and "checkpoint-1: empty" in result.stderr


def test_records_of_another_run(run: Path, tmp_path: Path) -> None:
    track(run)
    other = tmp_path / "other"
    save(other, 500, run=1)
    save(other, 900, run=1)
    before = (run / "attngeo.jsonl").read_bytes()
    result = cli(other, "--out", run / "attngeo.jsonl")
    assert result.exit_code == 2 and "holds another run, at step 500" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert (run / "attngeo.jsonl").read_bytes() == before
    deeper = tmp_path / "deeper"
    save(deeper, 7, layers=3)
    with pytest.raises(InputError, match="2 layers where checkpoint-7 has 3"):
        track(deeper, run / "attngeo.jsonl")
    assert (run / "attngeo.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json\n", "line 1 is not a record"),
        ('{"step": 1}\n[2]\n', "line 2"),
        ('{"loss": 1}\n', "its `step` expected"),
    ],
)
def test_a_file_that_holds_no_records(run: Path, text: str, message: str) -> None:
    (run / "attngeo.jsonl").write_text(text)
    result = cli(run)
    assert result.exit_code == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
    assert (run / "attngeo.jsonl").read_text() == text


def test_no_checkpoints(tmp_path: Path) -> None:
    for folder, message in [(tmp_path, "no checkpoints"), (tmp_path / "nowhere", "cannot be listed")]:
        result = cli(folder)
        assert result.exit_code == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_two_of_one_step(run: Path) -> None:
    save(run, 500, "step-{}")
    with pytest.raises(InputError, match="checkpoint-500 and step-500 are both of step 500"):
        track(run)


def test_a_file_that_cannot_be_written(run: Path) -> None:
    with pytest.raises(AttngeoError, match="cannot be written"):
        track(run, run / "nowhere" / "records.jsonl")


def test_safetensors_need_no_torch(run: Path) -> None:
    code = f"import sys; sys.modules['torch'] = None; import attngeo; attngeo.track({str(run)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert steps(run / "attngeo.jsonl") == [100, 500, 1000]


def test_curves_are_drawn(run: Path) -> None:
    result = cli(run, "--figure", run / "curves.png")
    assert result.exit_code == 0 and (run / "curves.png").read_bytes()[:4] == b"\x89PNG"
    from attngeo.show.training_curves import training_figure as curves

    rows = read_records(run / "attngeo.jsonl")
    axes = curves(rows).axes
    assert [line.get_ydata().tolist() for line in axes[0].get_lines()] == [
        [row["symmetry"][layer] for row in rows] for layer in (0, 1)
    ]
    assert axes[0].get_lines()[0].get_xdata().tolist() == [100, 500, 1000]
    # those of `attngeo pretrain` do not name their one stack
    assert curves([{"step": 0, "symmetry": [0.1], "directionality": [0.0]}]).axes
    with pytest.raises(InputError, match="nothing to draw"):
        curves([{"step": 0, "loss": 1.0}])


def test_records_in_memory_only(tmp_path: Path) -> None:
    records = RecordFile(tmp_path / "a.jsonl", writing=False)
    records.add({"step": 1})
    records.add({"step": 1, "again": True})
    assert records.rows == [{"step": 1, "again": True}] and not (tmp_path / "a.jsonl").exists()


def test_a_monitor_and_track_write_the_same_file(tmp_path: Path) -> None:
    """Training goes on while its checkpoints are scored: neither loses what the other wrote."""
    path = tmp_path / "a.jsonl"
    monitor = RecordFile(path)
    for step in (0, 100, 200):
        monitor.add({"step": step})
    tracking = RecordFile(path)
    tracking.add({"step": 50})
    monitor.add({"step": 300})
    tracking.add({"step": 250})
    assert steps(path) == [0, 50, 100, 200, 250, 300]
    monitor.add({"step": 400})
    tracking.add({"step": 150})
    assert steps(path) == [0, 50, 100, 150, 200, 250, 300, 400]
    path.unlink()
    monitor.add({"step": 500})
    assert steps(path) == [0, 50, 100, 200, 250, 300, 400, 500]


def test_records_of_other_layers_are_not_given_for_those_asked_for(run: Path) -> None:
    track(run, layers=[1])
    before = (run / "attngeo.jsonl").read_bytes()
    for layers in (None, [0]):
        with pytest.raises(
            InputError, match=r"holds 1 layers from encoder layer 1 on, \d from encoder layer 0 on were"
        ):
            track(run, layers=layers)
    assert (run / "attngeo.jsonl").read_bytes() == before
    assert track(run, layers=[1])[0]["layer"] == [1]


def test_a_folder_on_its_way_to_its_name_is_no_checkpoint(run: Path) -> None:
    save(run, 1000, "tmp-checkpoint-{}")
    save(run, 1500, ".checkpoint-{}")
    assert [saved.path.name for saved in checkpoints(run)] == ["checkpoint-100", "checkpoint-500", "checkpoint-1000"]


def test_the_newest_does_not_excuse_an_older_one(run: Path) -> None:
    for step in (500, 1000):
        (run / f"checkpoint-{step}" / "model.safetensors").write_bytes(b"half")
    with pytest.raises(SourceError, match=r"checkpoint-500/.* and 1 more; 1 of 3 checkpoints are in"):
        track(run)
    assert steps(run / "attngeo.jsonl") == [100]


def test_folders_of_weights_with_the_config_of_the_run(run: Path) -> None:
    expected = track(run, run / "with.jsonl")
    for step in (100, 500, 1000):
        (run / f"checkpoint-{step}" / "config.json").rename(run / "config.json")
    assert track(run) == expected and len(expected[0]["head_symmetry"][0]) == 4  # the head count is in the config
