"""A grid is run once, in slices of time, and no run is lost whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attngeo.errors import AttngeoError, InputError
from attngeo.training.data.tokens import prepare_tokens
from attngeo.training.pretraining.pretrain import pretrain
from experiments.initialisation.claims import claim
from experiments.initialisation.grid import custom_grid
from experiments.initialisation.run import run_grid
from experiments.initialisation.runs import read_runs
from experiments.initialisation.statistics import compare
from tests.experiments.initialisation.small_grids import SMALL, prepare_small_tokens, run_in, small_grid
from tests.training.small_runs import SETTINGS, without_speed, write_corpus


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return prepare_small_tokens(tmp_path)


def test_a_grid_is_run_once_and_gives_what_pretrain_gives(tmp_path: Path, tokens: Path) -> None:
    wanted = small_grid()
    seen: list[tuple[int, int | None]] = []
    left, lines = run_in(tmp_path, wanted, progress=lambda *call: seen.append(call))
    assert left == 0 and lines[0] == "4 runs, 0 finished before" and seen[-1] == (80, 80)
    runs = read_runs([tmp_path / "runs.jsonl.xz"])
    assert [run.cell for run in runs] == list(wanted)
    assert [path.name for path in (tmp_path / "work").iterdir()] == [".lock"]
    alone = pretrain({**SETTINGS, "out": str(tmp_path / "alone"), "tokens": str(tokens), "start": "symmetric",
                      "scale": "unit", "vocab": 16_384})  # fmt: skip
    whole = without_speed(alone.records)
    assert len(whole) == 6 and all("head_symmetry" in row for row in whole)
    for row in whole[1:-1]:  # scores are kept at the first and the last of six evaluations
        for key in row.keys() - {"step", "train_loss", "eval_loss"}:
            del row[key]
    assert without_speed(runs[1].records) == whole
    before = (tmp_path / "runs.jsonl.xz").read_bytes()
    assert run_in(tmp_path, wanted)[1] == ["4 runs, 4 finished before"]
    assert (tmp_path / "runs.jsonl.xz").read_bytes() == before
    assert run_in(tmp_path, wanted, "other.jsonl.xz", done=[tmp_path / "runs.jsonl.xz"])[1][0].endswith(
        "4 finished before"
    )


@pytest.mark.slow
def test_two_processes_share_a_grid(tmp_path: Path, tokens: Path) -> None:
    """Each run is made by one of them, and what one has begun is left out by the other."""
    settings = [f"{key}={value}" for key, value in SMALL.items()]
    command = [sys.executable, "-m", "experiments.initialisation", "run", "--tokens", str(tokens), "--results",
               str(tmp_path / "runs.jsonl.xz"), "--size", "2x32", "--steps", "20", "--seeds", "3",
               "--set", *settings]  # fmt: skip
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], lines
    runs = read_runs([tmp_path / "runs.jsonl.xz"])
    assert len(runs) == 6
    assert sum(text.count(": loss ") for text in lines) == 6  # none was made twice

    with claim(tmp_path / "others", small_grid()[0].key):
        left = run_grid(small_grid(), tokens, tmp_path / "others.jsonl.xz", work=tmp_path / "others")
    assert left == 1 and [run.cell for run in read_runs([tmp_path / "others.jsonl.xz"])] == list(small_grid()[1:])


def test_a_run_ends_when_its_loss_is_low_enough(tmp_path: Path, tokens: Path) -> None:
    """A slice of time before that does not count as the end, and a run that never gets there takes all its steps."""
    settings = SMALL | {"until_loss": 5.6}
    wanted = custom_grid(["baseline"], [3e-3], 1, settings, steps=200, size="2x32")
    never = custom_grid(["baseline"], [3e-3], 1, SMALL | {"until_loss": 0.1}, steps=20, size="2x32")
    left, _ = run_in(tmp_path, wanted, minutes=1e-5)
    assert left == 1
    assert run_in(tmp_path, wanted + never)[0] == 0
    low, whole = read_runs([tmp_path / "runs.jsonl.xz"])
    losses = [row["eval_loss"] for row in low.records]
    assert losses[-1] < 5.6 <= min(losses[:-1]) and low.records[-1]["step"] < 200
    assert whole.records[-1]["step"] == 20


def test_runs_of_other_tokens_are_an_error(tmp_path: Path, tokens: Path) -> None:
    """They would be compared as pairs although they saw other data."""
    run_in(tmp_path, small_grid(("baseline",), seeds=1))
    other = tmp_path / "other"
    prepare_tokens(other, [write_corpus(tmp_path, "other.txt", seed=5)], vocabulary=300)
    with pytest.raises(InputError, match=r"other: masked-2x32.*-baseline-seed0 was trained on other tokens"):
        run_grid(small_grid(seeds=1), other, tmp_path / "runs.jsonl.xz", work=tmp_path / "work")


def test_slices_of_time_do_not_change_the_results(tmp_path: Path, tokens: Path) -> None:
    wanted = small_grid(seeds=1)
    run_in(tmp_path, wanted, "whole.jsonl.xz")
    for number in range(40):
        left, _ = run_in(tmp_path, wanted, minutes=1e-4 if number % 2 else 1e-9)  # with 1e-9 minutes no run is started
        if not left:
            break
    assert left == 0
    whole, sliced = (read_runs([tmp_path / name]) for name in ("whole.jsonl.xz", "runs.jsonl.xz"))
    assert [without_speed(run.records) for run in sliced] == [without_speed(run.records) for run in whole]


def test_a_run_that_diverges_is_kept_and_not_run_again(tmp_path: Path, tokens: Path) -> None:
    wanted = small_grid(("baseline",), seeds=1)
    # weight decay times learning rate is far above 1, so every step makes the weights larger
    (broken,) = custom_grid(
        ["symmetric"], [9.9], 1, SMALL | {"weight_decay": 0.99, "warmup": 1}, steps=150, size="2x32"
    )
    left, lines = run_in(tmp_path, (broken, wanted[0]))
    runs = read_runs([tmp_path / "runs.jsonl.xz"])
    assert left == 0 and len(runs) == 2
    assert runs[0].diverged is not None and 0 < runs[0].diverged <= 150
    assert any(f"diverged, the loss is not finite from step {runs[0].diverged} on" in line for line in lines)
    assert run_in(tmp_path, (broken, wanted[0]))[1] == ["2 runs, 2 finished before"]
    assert {comparison.diverged for comparison in compare(runs)} == {(), ((0, runs[0].diverged),)}


def test_results_that_cannot_be_written_are_an_error_before_the_first_run(tmp_path: Path, tokens: Path) -> None:
    wanted = small_grid(seeds=1)
    results = tmp_path / "results"
    results.mkdir()  # a folder in place of the file
    with pytest.raises(AttngeoError, match="results: is a folder"):
        run_in(tmp_path, wanted, "results")
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_it_trains_where_typer_polars_and_matplotlib_are_missing(tmp_path: Path, tokens: Path) -> None:
    settings = [f"{key}={value}" for key, value in SMALL.items()]
    code = f"""
import sys
for name in ("typer", "polars", "matplotlib", "plotly", "numba", "rich", "pytest"):
    sys.modules[name] = None
from experiments.initialisation.__main__ import main
sys.exit(main(["run", "--tokens", {str(tokens)!r}, "--results", {str(tmp_path / "runs.jsonl.xz")!r}, "--size", "2x32",
               "--steps", "20", "--seeds", "1", "--set", *{settings!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert "0 runs left" in done.stderr and len(read_runs([tmp_path / "runs.jsonl.xz"])) == 2
    # The default work folder is beside the results.
    assert [path.name for path in (tmp_path / "runs.work").iterdir()] == [".lock"]
