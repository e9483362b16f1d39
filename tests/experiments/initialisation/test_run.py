"""The grid of paired runs: run by run, in slices of time, whatever happens to a run, and drawn."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attngeo.dynamics.data.tokens import prepare
from attngeo.dynamics.pretraining.pretrain import pretrain
from attngeo.errors import AttngeoError, InputError
from bench.pretraining_gpu import measure
from experiments.initialisation.grid import GROUPS, Cell, cells, free_grid
from experiments.initialisation.report import draw
from experiments.initialisation.run import compared, main, run_experiment, run_grid
from experiments.initialisation.statistics import append_run, read_runs
from tests.dynamics.small_runs import SETTINGS, corpus, measured

SMALL = {key: SETTINGS[key] for key in ("heads", "length", "batch", "evaluations", "warmup")}
SET = [f"{key}={value}" for key, value in SMALL.items()]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    prepare(tmp_path / "tokens", [corpus(tmp_path)], vocabulary=300)
    return tmp_path / "tokens"


def small(starts: tuple[str, ...] = ("baseline", "unit symmetric"), seeds: int = 2, **other: Any) -> tuple[Cell, ...]:
    shape = {"steps": 20, "size": "2x32", **other}
    return free_grid(starts, (1e-3,), seeds, SMALL, **shape)


def ran(folder: Path, wanted: tuple[Cell, ...], name: str = "runs.jsonl.xz", **how: Any) -> tuple[int, list[str]]:
    said: list[str] = []
    left = run_grid(wanted, folder / "tokens", folder / name, work=folder / "work", say=said.append, **how)
    return left, said


def test_a_grid_is_run_once_and_gives_what_pretrain_gives(tmp_path: Path, tokens: Path) -> None:
    wanted = small()
    seen: list[tuple[int, int | None]] = []
    left, said = ran(tmp_path, wanted, progress=lambda *told: seen.append(told))
    assert left == 0 and said[0] == "4 runs, 0 finished before" and seen[-1] == (80, 80)
    runs = read_runs([tmp_path / "runs.jsonl.xz"])
    assert [run.cell for run in runs] == list(wanted)
    assert not any((tmp_path / "work").iterdir())
    alone = pretrain({**SETTINGS, "out": str(tmp_path / "alone"), "tokens": str(tokens), "start": "symmetric",
                      "scale": "unit", "vocab": 16_384})  # fmt: skip
    whole = measured(alone.records)
    assert len(whole) == 6 and all("head_symmetry" in row for row in whole)
    for row in whole[1:-1]:  # of six evaluations single heads are kept at the first and the last
        del row["head_symmetry"], row["head_directionality"]
    assert measured(runs[1].records) == whole
    before = (tmp_path / "runs.jsonl.xz").read_bytes()
    assert ran(tmp_path, wanted)[1] == ["4 runs, 4 finished before"]
    assert (tmp_path / "runs.jsonl.xz").read_bytes() == before
    assert ran(tmp_path, wanted, "other.jsonl.xz", done=[tmp_path / "runs.jsonl.xz"])[1][0].endswith(
        "4 finished before"
    )


def test_runs_of_other_tokens_are_not_taken_for_these(tmp_path: Path, tokens: Path) -> None:
    """They would be compared as pairs though they saw other data."""
    ran(tmp_path, small(("baseline",), seeds=1))
    other = tmp_path / "other"
    prepare(other, [corpus(tmp_path, "other.txt", seed=5)], vocabulary=300)
    with pytest.raises(InputError, match=r"other: masked-2x32.*-baseline-seed0 was trained on other tokens"):
        run_grid(small(seeds=1), other, tmp_path / "runs.jsonl.xz", work=tmp_path / "work")
    (before,) = read_runs([tmp_path / "runs.jsonl.xz"])
    append_run(tmp_path / "old.jsonl.xz", replace(before, facts={}))  # as older versions wrote them
    assert ran(tmp_path, small(("baseline",), seeds=1), "old.jsonl.xz")[1] == ["1 runs, 1 finished before"]


def test_slices_of_time_change_nothing(tmp_path: Path, tokens: Path) -> None:
    wanted = small(seeds=1)
    ran(tmp_path, wanted, "whole.jsonl.xz")
    for number in range(40):
        left, _ = ran(tmp_path, wanted, minutes=1e-4 if number % 2 else 1e-9)  # the latter: not even begun
        if not left:
            break
    assert left == 0
    whole, sliced = (read_runs([tmp_path / name]) for name in ("whole.jsonl.xz", "runs.jsonl.xz"))
    assert [measured(run.records) for run in sliced] == [measured(run.records) for run in whole]


def test_a_run_that_diverges_is_a_finding_and_not_run_again(tmp_path: Path, tokens: Path) -> None:
    wanted = small(("baseline",), seeds=1)
    # decay times learning rate far above 1: every step makes the weights larger
    (broken,) = free_grid(["symmetric"], [9.9], 1, SMALL | {"weight_decay": 0.99, "warmup": 1}, steps=150, size="2x32")
    left, said = ran(tmp_path, (broken, wanted[0]))
    runs = read_runs([tmp_path / "runs.jsonl.xz"])
    assert left == 0 and len(runs) == 2
    assert runs[0].diverged is not None and 0 < runs[0].diverged <= 150
    assert any(f"diverged, no loss from step {runs[0].diverged} on" in line for line in said)
    assert ran(tmp_path, (broken, wanted[0]))[1] == ["2 runs, 2 finished before"]
    assert {one.diverged for one in compared([tmp_path / "runs.jsonl.xz"])} == {(), ((0, runs[0].diverged),)}


def test_results_that_cannot_be_written_lose_no_run(tmp_path: Path, tokens: Path) -> None:
    wanted = small(seeds=1)
    results = tmp_path / "results"
    results.mkdir()  # a folder where the file should be
    with pytest.raises(AttngeoError, match="results: is a folder"):
        ran(tmp_path, wanted, "results")
    assert not (tmp_path / "work").exists()
    results.rmdir()
    with pytest.raises(AttngeoError, match="results: cannot be written"):
        ran(tmp_path, wanted, "results", progress=lambda *_: results.mkdir(exist_ok=True))  # while a run is under way
    other = tmp_path / "other"
    prepare(other, [corpus(tmp_path)], vocabulary=200)
    with pytest.raises(InputError, match="baseline-seed0 was trained on other tokens"):
        run_grid(wanted, other, tmp_path / "others", work=tmp_path / "work")
    kept = tmp_path / "work" / wanted[0].key / "finished.jsonl.xz"
    (saved,) = read_runs([kept])
    results.rmdir()
    left, _ = ran(tmp_path, wanted, "results")
    assert left == 0 and read_runs([results])[0] == saved  # not run again: its seconds are the same too
    assert not kept.exists()


def test_settings_of_a_grid() -> None:
    usual, other = cells(["pilot"]), cells(["pilot"], settings={"batch": 64, "compile": "no"})
    assert [cell.key for cell in usual] == ["masked-4x256-lr0.0005-9500-baseline-seed0",
                                            "masked-4x256-lr0.0005-9500-unit-symmetric-seed0"]  # fmt: skip
    assert [cell.other for cell in other] == [(("batch", 64),)] * 2
    assert not {cell.key for cell in usual} & {cell.key for cell in other}
    for name in ("lr", "seed", "steps", "size", "start", "scale", "objective", "out", "tokens", "vocab", "keep_model"):
        with pytest.raises(InputError, match=f"setting '{name}' is fixed by the grid or its tokens"):
            cells(["pilot"], settings={name: 1})
    with pytest.raises(InputError, match="setting 'bach' does not exist, did you mean 'batch'"):
        cells(["pilot"], settings={"bach": 1})
    with pytest.raises(InputError, match="batch is 'x', expected a whole number"):
        cells(["pilot"], settings={"batch": "x"})


def test_what_is_named_twice_is_run_once() -> None:
    twice = free_grid(["baseline", "symmetric", "baseline"], [1e-3, 1e-3], 2)
    assert twice == free_grid(["baseline", "symmetric"], [1e-3], 2) and len(twice) == 4


@pytest.mark.parametrize("name", ["seeds", "steps"])
def test_a_grid_of_nothing_is_not_the_usual_one(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is 0, expected at least 1"):
        run_experiment(Path("a"), Path("b"), free={name: 0})


def test_names_that_do_not_exist() -> None:
    with pytest.raises(InputError, match="group 'cor' does not exist, did you mean 'core'"):
        cells(["cor"])
    with pytest.raises(InputError, match="start 'unit symetric' is not in these groups, did you mean 'unit symmetric'"):
        cells(["core"], ["unit symetric"])
    with pytest.raises(InputError, match="start 'symetric' does not exist"):
        free_grid(["unit symetric"], [1e-3], 1)
    with pytest.raises(InputError, match="seeds is 0"):
        free_grid(["baseline"], [1e-3], 0)
    with pytest.raises(InputError, match="expected KEY=VALUE"):
        run_experiment(Path("a"), Path("b"), settings=["batch"])
    with pytest.raises(InputError, match="cannot go with group core"):
        run_experiment(Path("a"), Path("b"), groups=["core"], free={"seeds": 2})


def test_the_grid_of_the_experiment() -> None:
    count = {name: len(group) for name, group in GROUPS.items()}
    assert count["core"] == 5 * 2 * 3 and count["mimetic"] == 4 * 2 * 3 and count["slow"] == 3
    assert count["large"] == 9 and count["causal"] == 6 and count["more-seeds"] == 3 * 2 * 2
    every = {cell.key: cell for group in GROUPS.values() for cell in group}
    assert every["masked-4x256-lr0.0005-9500-baseline-seed0"].config("a", "b").fingerprint == "b5adc1dc2764d0f3"
    assert all(cell.config("a", "b").evaluations == 100 for cell in every.values())


def test_figures_show_every_start(tmp_path: Path, tokens: Path) -> None:
    starts = ("baseline", "unit symmetric", "unit rotated", "independent")
    ran(tmp_path, small(starts))
    ran(tmp_path, small(("baseline", "unit symmetric"), objective="causal"))
    written = draw(read_runs([tmp_path / "runs.jsonl.xz"]), tmp_path / "figures")
    names = {path.name for path in written}
    assert {"table.txt", "table.md", "table.csv", "form.csv", "losses-masked-2x32.png", "losses-causal-2x32.png",
            "saved.png", "controls.png"} <= names  # fmt: skip
    assert any(name.startswith("form-2x32-lr0.001-20-batch") and name.endswith("-baseline.png") for name in names)
    assert all(path.stat().st_size > 100 for path in written)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written if path.suffix == ".png")
    with pytest.raises(InputError, match="no finished runs"):
        draw([], tmp_path / "none")


def test_curves_are_means_and_ranges_over_seeds(tmp_path: Path, tokens: Path) -> None:
    """What is drawn is what was measured, encoder in the first column and decoder in the second."""
    from experiments.initialisation.figures import form_figure, loss_figure
    from experiments.initialisation.table import forms_as_csv

    ran(tmp_path, small(("baseline",)))
    ran(tmp_path, small(("baseline",), objective="causal"))
    runs = read_runs([tmp_path / "runs.jsonl.xz"])
    axes = form_figure(runs).axes
    assert [ax.get_title(loc="left") for ax in axes[:2]] == ["encoder (masked)", "decoder (causal)"]
    kinds = [("masked", "symmetry"), ("causal", "symmetry"), ("masked", "directionality"), ("causal", "directionality")]
    for ax, (objective, score) in zip(axes, kinds, strict=True):
        mine = [run for run in runs if run.cell.objective == objective]
        for layer, line in enumerate(ax.get_lines()[:2]):
            mean = [sum(run.records[i][score][layer] for run in mine) / 2 for i in range(6)]
            assert line.get_ydata().tolist() == pytest.approx(mean)
    rows = list(csv.DictReader(forms_as_csv(runs).splitlines()))
    assert [(row["objective"], row["layer"], row["seeds"]) for row in rows] == [
        (objective, layer, "2") for objective in ("masked", "causal") for layer in "01"
    ]
    ends = [run.records[-1]["directionality"][1] for run in runs[2:]]
    assert [float(rows[3][f"directionality{kind}"]) for kind in ("_low", "", "_high")] == pytest.approx(
        [min(ends), sum(ends) / 2, max(ends)]
    )
    (line,) = loss_figure([run for run in runs if run.cell.objective == "masked"]).axes[0].get_lines()
    masked = [run for run in runs if run.cell.objective == "masked"]
    assert line.get_ydata()[-1] == pytest.approx(sum(run.loss for run in masked) / 2)


def test_module_command_line(tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in small(seeds=1):
        ran(tmp_path, (run,))
    assert main(["table", str(tmp_path / "runs.jsonl.xz"), "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("objective,size,lr,steps,other,start,seeds,loss,against,difference")
    assert main(["run", "--tokens", str(tokens), "--results", str(tmp_path / "r.gz"), "--set", "lr=1"]) == 2
    assert (
        capsys.readouterr().err == "attngeo: error: setting 'lr' is fixed by the grid or its tokens and cannot be set\n"
    )
    into = tmp_path / "again"
    assert main(["prepare", "--train", str(tmp_path / "corpus.txt"), "--into", str(into), "--vocab", "300",
                 "--pack", str(tmp_path / "packed")]) == 0  # fmt: skip
    assert (into / "train.bin").read_bytes() == (tokens / "train.bin").read_bytes()
    assert "packed: " in capsys.readouterr().out


def test_it_runs_where_typer_polars_and_matplotlib_are_missing(tmp_path: Path, tokens: Path) -> None:
    append_run(tmp_path / "runs.jsonl.xz", read_runs_of(tmp_path))
    code = f"""
import sys
for name in ("typer", "polars", "matplotlib", "plotly", "numba", "rich", "transformers", "pytest"):
    sys.modules[name] = None
from experiments.initialisation.run import main
sys.exit(main(["run", "--tokens", {str(tokens)!r}, "--results", {str(tmp_path / "runs.jsonl.xz")!r},
               "--done", {str(tmp_path / "runs.jsonl.xz")!r}, "--group", "pilot", "--start", "baseline",
               "--work", {str(tmp_path / "work")!r}, "--minutes", "0"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert "0 runs left" in done.stdout and "final loss" in done.stdout


def read_runs_of(folder: Path) -> Any:
    """A finished run of the pilot, made from a small one."""
    (cell,) = small(("baseline",), seeds=1)
    ran(folder, (cell,), "small.jsonl.xz")
    (run,) = read_runs([folder / "small.jsonl.xz"])
    return replace(run, cell=GROUPS["pilot"][0])


def test_speed_is_measured(tokens: Path) -> None:
    said: list[str] = []
    shape = {"heads": 2, "length": 32, "batch": 8}
    (found,) = measure(tokens, ["2x32"], ["masked"], 4, False, said.append, **shape)
    assert found["steps_per_second"] > 0 and "steps/s" in said[0]
    # 6·parameters·tokens + 12·layers·d·length·tokens + 6·(d² + d·vocabulary)·predicted, vocabulary in tiles of 64
    work = 6 * 2 * 12 * 32**2 * 256 + 12 * 2 * 32 * 32 * 256 + 6 * (32**2 + 32 * 320) * 5 * 8
    assert found["flops"] / found["steps_per_second"] == pytest.approx(work)
