"""`python -m experiments.initialisation`: what it prints and writes; bad input gives one line and exit code 2."""

from __future__ import annotations

import csv
import math
import statistics
from pathlib import Path

import pytest

from attngeo.training.data.tokens import open_tokens
from experiments.initialisation.__main__ import main
from experiments.initialisation.runs import append_run
from tests.experiments.initialisation.finished_runs import RUNS
from tests.experiments.initialisation.small_grids import prepare_small_tokens
from tests.training.small_runs import write_corpus

GRID = ["--size", "2x32", "--steps", "20", "--lr", "0.001", "--seeds", "2", "--set", "heads=2", "--set", "length=32",
        "--set", "batch=8", "evaluations=5", "warmup=4"]  # fmt: skip

ROOT = Path(__file__).resolve().parents[3]
Capture = pytest.CaptureFixture[str]


def output(capsys: Capture, *arguments: str | Path) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    try:
        code = main(list(map(str, arguments)))
    except SystemExit as error:  # argparse
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def error_line(capsys: Capture, *arguments: str | Path) -> str:
    """Run a command that must fail; return its one line of error."""
    code, out, err = output(capsys, *arguments)
    assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1, (code, out, err)
    return err.removeprefix("error: ").rstrip("\n")


def test_one_command_runs_a_grid_from_text_and_prints_the_comparison(tmp_path: Path, capsys: Capture) -> None:
    results, tokens = tmp_path / "results" / "runs.jsonl.xz", tmp_path / "tokens"
    run = ["run", "--train", write_corpus(tmp_path), "--vocab", "300", "--results", results, "--work",
           tmp_path / "work", *GRID]  # fmt: skip
    code, out, err = output(capsys, *run, "--tokens", tokens)
    assert code == 0, err
    assert out.splitlines()[1].split()[-3:] == ["baseline", "2", out.splitlines()[1].split()[-1]]
    assert f"preparing tokens in {tokens}\n4 runs, 0 finished before\n" in err and err.endswith("0 runs left\n")
    assert output(capsys, "table", results) == (0, out, "")  # nothing is run
    assert output(capsys, *run, "--tokens", tokens)[2] == "4 runs, 4 finished before\n0 runs left\n"
    again = tmp_path / "again"
    assert output(capsys, *run, "--tokens", again, "--tokenizer", tokens)[0] == 0
    assert open_tokens(again).digest == open_tokens(tokens).digest


def write_runs(folder: Path) -> Path:
    """Write finished runs to a file in `folder` and return its path."""
    for run in RUNS:
        append_run(folder / "runs.jsonl.xz", run)
    return folder / "runs.jsonl.xz"


def test_only_the_runs_of_a_group_are_compared(capsys: Capture) -> None:
    """Seed 0 of the group is in one file, the other seeds in others; the files also hold runs of other groups."""
    results = [ROOT / "results" / "initialisation", ROOT / "results" / "initialisation_grid"]
    code, out, _ = output(capsys, "table", *results, "--group", "pre-norm", "slow", "--format", "csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 0 and {(row["lr"], row["other"], row["seeds"]) for row in rows} == {
        ("5e-05", "", "1"), ("0.001", "norm=pre", "5")
    }  # fmt: skip
    assert error_line(capsys, "table", results[0], "--group", "pre-norm") == (
        f"{results[0]}: no finished runs of group pre-norm to compare"
    )
    assert error_line(capsys, "table", *results, "--group", "prenorm").startswith("group 'prenorm' does not exist")


def test_bad_input_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    results = write_runs(tmp_path)
    assert "the following arguments are required: --tokens, --results" in error_line(capsys, "run")
    assert "not a file of finished runs" in error_line(capsys, "table", tmp_path / "none.gz")
    (tmp_path / "empty").mkdir()
    assert error_line(capsys, "table", tmp_path / "empty") == f"{tmp_path}/empty: no finished runs to compare"
    assert "there are authors, baseline, unit symmetric" in error_line(
        capsys, "table", results, "--against", "symetric"
    )
    run = ("run", "--tokens", tmp_path, "--results", tmp_path / "r.gz")
    assert "no prepared token files" in error_line(capsys, *run)
    assert "did you mean 'core'" in error_line(capsys, *run, "--group", "cor")
    assert error_line(capsys, *run, "--group", "core", "--steps", "9") == (
        "steps: a setting of a custom grid, cannot be combined with group core"
    )
    assert error_line(capsys, *run, "--set", "seed=3") == (
        "setting 'seed' is fixed by the grid or its tokens and cannot be set"
    )
    assert not (tmp_path / "r.gz").exists()


def test_the_loss_of_token_frequencies_is_that_of_each_held_out_token(tmp_path: Path, capsys: Capture) -> None:
    """Special tokens count neither among the frequencies nor among the predicted tokens."""
    tokens = open_tokens(prepare_small_tokens(tmp_path))
    seen = [int(token) for token in tokens.array("train") if token not in tokens.special]
    ordinary = tokens.vocabulary - len(tokens.special)
    losses = [-math.log((seen.count(token) + 1) / (len(seen) + ordinary)) for token in map(int, tokens.array("valid"))
              if token not in tokens.special]  # fmt: skip
    code, out, err = output(capsys, "frequencies", "--tokens", tokens.folder)
    assert (code, err) == (0, "")
    assert out == (f"{statistics.fmean(losses):.3f} nats per held-out token, with a standard deviation of "
                   f"{statistics.pstdev(losses):.3f} over the tokens\n")  # fmt: skip
