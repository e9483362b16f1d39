"""`attngeo prune`: the folder it writes, what it prints, and bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import attngeo
from attngeo.cli.app import app

pytest.importorskip("transformers")

DECODER = str(attngeo.bundled.bundled("decoder"))
DATA = Path(__file__).parents[1] / "data"
AUSTEN, MELVILLE = DATA / "austen.txt", DATA / "melville.txt"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["prune", *map(str, arguments)])


def test_a_smaller_model_is_written(tmp_path: Path) -> None:
    done = run(DECODER, "--text-file", AUSTEN, "--eval-file", MELVILLE, "--out", tmp_path / "small")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "5 of 16 heads (31.2%) of bert, chosen by unexplained"
    assert lines[2].split() == ["layer", "removed", "cost"]
    assert "next token loss" in done.stdout
    assert lines[-1].startswith("loss ") and "parameters (92.4%)" in lines[-1]
    plan = attngeo.PrunePlan.load(tmp_path / "small" / "plan.json")
    small = attngeo.load_pruned(tmp_path / "small")
    assert small.config.attngeo_pruned["method"] == "unexplained"
    assert len(plan.removed) == 5
    assert attngeo.score(tmp_path / "small").frame["head"].drop_nulls().len() == 11
    names = {path.name for path in (tmp_path / "small").iterdir()}
    assert names >= {"losses.json", "losses.png", "plan.npz", "tokenizer.json", "model.safetensors"}


@pytest.mark.slow
def test_all_methods_are_compared(tmp_path: Path) -> None:
    done = run(DECODER, "--text-file", AUSTEN, "--out", tmp_path / "small", "--heads", 2, "--compare")
    assert done.exit_code == 0, done.output
    rows = {line.split()[0] for line in done.stdout.splitlines() if " / " in line}
    assert rows >= {"unexplained", "refit", "error", "gradient", "magnitude", "folders", "entropy", "random"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "calibration inputs: expected one of --text-file, --image, --audio, got none of them"),
        (("--text-file", AUSTEN, "--image", "a.png"), "got --text-file and --image"),
        (("--text-file", DATA / "none.txt"), "none.txt: cannot be read"),
        (("--image", DATA / "none.png"), "none.png"),
        (("--audio", DATA / "none.wav"), "none.wav: no such file"),
        (("--text-file", AUSTEN, "--share", 1.5), "share is 1.5, expected a number between 0 and 1"),
        (("--text-file", AUSTEN, "--share", 0.5, "--heads", 3), "expected one of the two"),
        (("--text-file", AUSTEN, "--method", "luck"), "method 'luck': expected one of"),
        (("--text-file", AUSTEN, "--uniform"), "uniform: model type bert"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[object, ...], message: str, tmp_path: Path) -> None:
    done = run(DECODER, *arguments, "--out", tmp_path / "small")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("attngeo: error: ") and message in line
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    done = run(DECODER, "--text-file", AUSTEN, "--out", tmp_path)
    assert done.exit_code == 2 and "exists already, expected a new or an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
