"""`attngeo pretrain` and `attngeo experiment initialisation`: what they print, and bad input as one line and exit 2."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from attngeo.cli import app
from attngeo.dynamics.data.tokens import open_tokens
from attngeo.dynamics.monitoring.records import read_records
from attngeo.dynamics.pretraining.pretrain import pretrain
from tests.dynamics.small_runs import corpus, measured, process, settings, toml

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, arguments)
    return found.exit_code, found.stdout, found.stderr


def refused(*arguments: str) -> str:
    """The one line of an error."""
    code, out, error = run(*arguments)
    *before, line = error.splitlines()
    assert code == 2 and out == "" and line.startswith("attngeo: error: "), (code, out, error)
    assert all(said.startswith("attngeo: preparing tokens") for said in before), error
    return line.removeprefix("attngeo: error: ")


def test_pretrain(tmp_path: Path) -> None:
    config = toml(tmp_path / "a.toml", settings(tmp_path))
    code, out, error = run("pretrain", str(config))
    rows = read_records(tmp_path / "run" / "metrics.jsonl")
    assert code == 0 and out == f"{tmp_path}/run: held-out loss {rows[-1]['eval_loss']:.4f} after 20 steps\n"
    assert error == f"attngeo: preparing tokens in {tmp_path}/tokens\n"
    assert run("pretrain", str(config)) == (0, out, "")  # finished before
    assert (tmp_path / "run" / "model" / "config.json").exists()


Broken = Callable[[Path], dict[str, Any]]


def _empty(folder: Path) -> dict[str, Any]:
    (folder / "bad.txt").touch()
    return {"train": [str(folder / "bad.txt")]}


def _blank(folder: Path) -> dict[str, Any]:
    (folder / "bad.txt").write_text("\n  \n\n")
    return {"train": [corpus(folder), str(folder / "bad.txt")]}


def _binary(folder: Path) -> dict[str, Any]:
    (folder / "bad.txt").write_bytes(b"\x7fELF\x02\x01\0\0" * 99)
    return {"train": [str(folder / "bad.txt")]}


def _short(folder: Path) -> dict[str, Any]:
    return {"train": [corpus(folder, "bad.txt", count=101)], "batch": 512}


def _tokenizer(folder: Path) -> dict[str, Any]:
    from tokenizers import Tokenizer, models

    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(400)))
    Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]")).save(
        str(folder / "bad.json")
    )
    return {"tokenizer": str(folder / "bad.json")}


def _no_mask(folder: Path) -> dict[str, Any]:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")).save(str(folder / "bad.json"))
    return {"tokenizer": str(folder / "bad.json")}


BAD: dict[str, tuple[Broken, str]] = {
    "empty": (_empty, "bad.txt: is empty, expected text"),
    "blank": (_blank, "bad.txt: no text in it"),
    "binary": (_binary, "bad.txt: byte 6 is zero: binary data, UTF-8 text expected"),
    "missing": (lambda folder: {"train": [str(folder / "bad.txt")]}, "bad.txt: no such text file"),
    "short": (_short, "train.bin: {} tokens, fewer than the 512 rows of 32 of one batch"),
    "tokenizer": (_tokenizer, "bad.json: 405 tokens do not fit a model with vocab = 300"),
    "no mask": (_no_mask, "bad.json: has no [PAD] [CLS] [SEP] [MASK]; a BERT-shaped model needs"),
    "key": (lambda _: {"lerning_rate": 1}, "a.toml: no setting 'lerning_rate'"),
    "near key": (lambda _: {"warmpu": 1}, "a.toml: no setting 'warmpu', did you mean 'warmup'?"),
    "value": (lambda _: {"objective": "mlm"}, "a.toml: objective is 'mlm', expected 'masked', 'causal'"),
    "start": (lambda _: {"start": "symetric"}, "start 'symetric' does not exist, did you mean 'symmetric'?"),
    "nan": (
        lambda _: {"start": "symmetric", "scale": 1e30},
        "run: held-out loss is nan at step 0; stopped, there is no checkpoint yet",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line_and_nothing_is_lost(tmp_path: Path, kind: str) -> None:
    change, expected = BAD[kind]
    table = settings(tmp_path)
    keep = tmp_path / "run"
    keep.mkdir()
    (keep / "notes.txt").write_text("mine")
    line = refused("pretrain", str(toml(tmp_path / "a.toml", {**table, **change(tmp_path)})))
    assert all(part in line for part in expected.split("{}")), line
    assert (keep / "notes.txt").read_text() == "mine" and not (keep / "checkpoint.pt").exists()
    # the mistake put right, the same folders serve
    shutil.rmtree(tmp_path / "tokens", ignore_errors=kind != "short")
    assert run("pretrain", str(toml(tmp_path / "a.toml", table)))[0] == 0


def test_a_checkpoint_of_another_config_is_kept(tmp_path: Path) -> None:
    pretrain(settings(tmp_path))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    line = refused("pretrain", str(toml(tmp_path / "a.toml", settings(tmp_path, seed=3, lr=0.5))))
    changed = "lr was 0.001, is 0.5; seed was 0, is 3"
    state = f"{tmp_path}/run/checkpoint.pt"
    assert line == f"{state}: a checkpoint of another config ({changed}); name another out, or delete it"
    assert "a training state of attngeo pretrain; the trained model is the folder `model`" in refused("score", state)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_loss_that_is_no_number_names_step_and_checkpoint(tmp_path: Path) -> None:
    table = settings(tmp_path)
    stops = iter([False, True])
    pretrain(table, stop=lambda: next(stops))
    checkpoint = tmp_path / "run" / "checkpoint.pt"
    state = torch.load(checkpoint, weights_only=True)
    state["weights"]["cls.predictions.bias"].fill_(float("inf"))
    torch.save(state, checkpoint)
    line = refused("pretrain", str(toml(tmp_path / "a.toml", table)))
    assert line == f"{tmp_path}/run: loss is nan at step 5; stopped, the last good checkpoint is {checkpoint}"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Makes a real file system of so many kB, where the tests may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mounted(size: int) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder)], capture_output=True
        )
        if done.returncode:
            pytest.skip("no file system may be mounted here")
        return folder

    yield mounted
    subprocess.run(["umount", str(folder)], capture_output=True)


def stopped(config: Path, **options: Any) -> str:
    """The error of a run in a process of its own."""
    with process(["-m", "attngeo", "pretrain", str(config)], **options) as work:
        out, error = work.communicate()
    lines = [line for line in error.splitlines() if not line.startswith("attngeo: preparing")]
    assert work.returncode == 2 and out == "" and len(lines) == 1, error
    return lines[0].removeprefix("attngeo: error: ")


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """The first checkpoint does not fit: one line, no half of it left; given room, the run ends as any other."""
    table = settings(tmp_path)
    config = toml(tmp_path / "a.toml", table)
    line = stopped(config, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))
    assert line == f"{tmp_path}/run/checkpoint.pt: cannot be written (File too large)"
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock", "metrics.jsonl"}
    rows = read_records(tmp_path / "run" / "metrics.jsonl")
    assert measured(pretrain(table).records)[: len(rows)] == measured(rows)


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path: Path, disk: Callable[[int], Path]) -> None:
    """Room for one checkpoint, not for two at a time: the first stays, and a disk with room continues from it."""
    whole = pretrain(settings(tmp_path))
    size = (tmp_path / "run" / "checkpoint.pt").stat().st_size // 1024
    folder = disk(int(1.6 * size))
    table = settings(tmp_path, out=str(folder / "run"))
    line = stopped(toml(tmp_path / "a.toml", table))
    full = f"{folder}/run/checkpoint.pt: cannot be written (No space left on device); the checkpoint before it is kept"
    assert line == full
    assert torch.load(folder / "run" / "checkpoint.pt", weights_only=True)["step"] == 4
    shutil.copytree(folder / "run", tmp_path / "moved")
    resumed = pretrain({**table, "out": str(tmp_path / "moved")})
    assert measured(resumed.records) == measured(whole.records)


GRID = ["--size", "2x32", "--steps", "20", "--lr", "0.001", "--seeds", "2", "--set", "heads=2", "--set", "length=32",
        "--set", "batch=8", "--set", "evaluations=5", "--set", "warmup=4"]  # fmt: skip


def test_experiment(tmp_path: Path) -> None:
    """From text to figures in one command; then the table again, without running anything."""
    results, figures = tmp_path / "results" / "runs.jsonl.xz", tmp_path / "figures"
    arguments = ["experiment", "initialisation", "--tokens", str(tmp_path / "tokens"), "--train", corpus(tmp_path),
                 "--vocab", "300", "--results", str(results), "--work", str(tmp_path / "work"), *GRID]  # fmt: skip
    code, out, error = run(*arguments, "--figures", str(figures))
    assert code == 0, error
    assert out.splitlines()[1].split()[-3:] == ["baseline", "2", out.splitlines()[1].split()[-1]]
    assert "attngeo: 0 runs left" in error and f"attngeo: wrote {figures}/saved.png" in error
    assert {"losses-masked-2x32.png", "saved.png", "table.csv"} <= {path.name for path in figures.iterdir()}
    only = ["experiment", "initialisation", "--table", "--results", str(results)]
    assert run(*only) == (0, out, "")
    assert "against unit symmetric [95%]" in run(*only, "--against", "unit symmetric", "--figures", str(figures))[1]
    assert "against unit symmetric [95%]" in (figures / "table.txt").read_text()
    assert "a file, expected a folder" in refused(*only, "--figures", str(results))
    assert "there are baseline, unit symmetric" in refused(*only, "--against", "symmetric")
    assert run(*only, "--out", str(tmp_path / "t.md"))[0] == 0
    assert (tmp_path / "t.md").read_text().startswith("| setting | start | seeds |")
    assert "4 runs, 4 finished before" in run(*arguments)[2]
    again = [str(tmp_path / "again") if argument == str(tmp_path / "tokens") else argument for argument in arguments]
    assert run(*again, "--tokenizer", str(tmp_path / "tokens"))[0] == 0
    assert open_tokens(tmp_path / "again").digest == open_tokens(tmp_path / "tokens").digest


def test_experiment_bad_input(tmp_path: Path) -> None:
    command = ("experiment", "initialisation")
    assert "both are needed to run" in refused(*command)
    assert "no finished runs to compare" in refused(*command, "--table")
    assert "not a file of finished runs" in refused(*command, "--table", "--results", str(tmp_path / "none.gz"))
    assert "expected one of table, markdown, csv" in refused(*command, "--table", "--format", "html")
    there = (*command, "--tokens", str(tmp_path), "--results", str(tmp_path / "r.gz"))
    assert "no prepared token files" in refused(*there)
    assert "did you mean 'core'" in refused(*there, "--group", "cor")
    assert refused(*there, "--group", "core", "--lr", "1e-3").startswith(
        "lr: a grid of one's own, cannot go with group"
    )
    assert "setting 'seed' is fixed" in refused(*there, "--set", "seed=3")
    assert "setting 'start' is fixed" in refused(*there, "--set", "start=unit symmetric")
    assert "set batch: expected KEY=VALUE" in refused(*there, "--set", "batch")
    assert not (tmp_path / "r.gz").exists()


def test_help_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from attngeo.cli import app; app(['pretrain', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0 and "CONFIG.toml" in done.stdout
