"""`attngeo pretrain`: what it prints; bad input gives one line and exit code 2."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attngeo.training.monitoring.records import read_records
from attngeo.training.pretraining.pretrain import pretrain
from tests.cli.commands import call
from tests.training.small_runs import run_settings, start_python, without_speed, write_corpus, write_toml

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def run(*arguments: str) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    done = call(*arguments)
    return done.returncode, done.stdout, done.stderr


def error_line(*arguments: str) -> str:
    """Run a command that must fail; return its one line of error."""
    code, out, error = run(*arguments)
    *before, line = error.splitlines()
    assert code == 2 and out == "" and line.startswith("attngeo: error: "), (code, out, error)
    assert all(message.startswith("attngeo: preparing tokens") for message in before), error
    return line.removeprefix("attngeo: error: ")


def test_pretrain_prints_the_loss_and_saves_the_model(tmp_path: Path) -> None:
    config = write_toml(tmp_path / "a.toml", run_settings(tmp_path))
    code, out, error = run("pretrain", str(config))
    rows = read_records(tmp_path / "run" / "metrics.jsonl")
    assert code == 0 and out == f"{tmp_path}/run: held-out loss {rows[-1]['eval_loss']:.4f} after 20 steps\n"
    assert error == f"attngeo: preparing tokens in {tmp_path}/tokens\n"
    assert run("pretrain", str(config)) == (0, out, "")  # finished before
    assert (tmp_path / "run" / "model" / "config.json").exists()


BadSettings = Callable[[Path], dict[str, Any]]


def short_text(folder: Path) -> dict[str, Any]:
    return {"train": [write_corpus(folder, "bad.txt", count=101)], "batch": 512}


def tokenizer_without_mask(folder: Path) -> dict[str, Any]:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")).save(str(folder / "bad.json"))
    return {"tokenizer": str(folder / "bad.json")}


BAD: dict[str, tuple[BadSettings, str]] = {
    "short": (short_text, "train.bin: {} tokens, fewer than the 512 rows of 32 of one batch"),
    "no mask": (tokenizer_without_mask, "bad.json: has no [PAD] [CLS] [SEP] [MASK]; pre-training needs"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    change, expected = BAD[kind]
    table = run_settings(tmp_path)
    keep = tmp_path / "run"
    keep.mkdir()
    (keep / "notes.txt").write_text("mine")
    line = error_line("pretrain", str(write_toml(tmp_path / "a.toml", {**table, **change(tmp_path)})))
    assert all(part in line for part in expected.split("{}")), line
    assert (keep / "notes.txt").read_text() == "mine" and not (keep / "checkpoint.pt").exists()
    if kind == "short":  # once the mistake is corrected, the same folders can be used
        shutil.rmtree(tmp_path / "tokens")
        assert run("pretrain", str(write_toml(tmp_path / "a.toml", table)))[0] == 0


def test_a_checkpoint_of_another_config_is_an_error_and_stays(tmp_path: Path) -> None:
    pretrain(run_settings(tmp_path))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    line = error_line("pretrain", str(write_toml(tmp_path / "a.toml", run_settings(tmp_path, seed=3, lr=0.5))))
    changed = "lr was 0.001, is 0.5; seed was 0, is 3"
    state = f"{tmp_path}/run/checkpoint.pt"
    assert line == f"{state}: a checkpoint of another config ({changed}); name another out, or delete it"
    assert "expected a state dict of tensors: name the folder with the exported model" in error_line("score", state)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


@pytest.fixture
def mount_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Return a function that mounts a file system of a number of kB, where the tests may do that."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size: int) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder)], capture_output=True
        )
        if done.returncode:
            pytest.skip("no file system may be mounted here")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], capture_output=True)


def error_in_process(config: Path, **options: Any) -> str:
    """Run `attngeo pretrain` in a process of its own; return its one line of error."""
    with start_python(["-m", "attngeo", "pretrain", str(config)], **options) as work:
        out, error = work.communicate()
    lines = [line for line in error.splitlines() if not line.startswith("attngeo: preparing")]
    assert work.returncode == 2 and out == "" and len(lines) == 1, error
    return lines[0].removeprefix("attngeo: error: ")


def test_a_checkpoint_that_does_not_fit_leaves_no_incomplete_file(tmp_path: Path) -> None:
    """The first checkpoint exceeds the largest file size; without the limit, the run ends as any other."""
    table = run_settings(tmp_path)
    config = write_toml(tmp_path / "a.toml", table)
    line = error_in_process(config, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))
    assert line == f"{tmp_path}/run/checkpoint.pt: cannot be written (File too large)"
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock", "metrics.jsonl"}
    rows = read_records(tmp_path / "run" / "metrics.jsonl")
    assert without_speed(pretrain(table).records)[: len(rows)] == without_speed(rows)


@pytest.mark.slow
def test_a_full_disk_keeps_the_checkpoint_before(tmp_path: Path, mount_disk: Callable[[int], Path]) -> None:
    """The disk has room for one checkpoint, not for two: the first stays, and the run continues from it elsewhere."""
    whole = pretrain(run_settings(tmp_path))
    size = (tmp_path / "run" / "checkpoint.pt").stat().st_size // 1024
    folder = mount_disk(int(1.6 * size))
    table = run_settings(tmp_path, out=str(folder / "run"))
    line = error_in_process(write_toml(tmp_path / "a.toml", table))
    full = f"{folder}/run/checkpoint.pt: cannot be written (No space left on device); the checkpoint before it is kept"
    assert line == full
    assert torch.load(folder / "run" / "checkpoint.pt", weights_only=True)["step"] == 4
    shutil.copytree(folder / "run", tmp_path / "moved")
    resumed = pretrain({**table, "out": str(tmp_path / "moved")})
    assert without_speed(resumed.records) == without_speed(whole.records)
