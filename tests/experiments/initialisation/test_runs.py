"""Finished runs are appended to a file and read back; a file of anything else is an error of one line."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from attngeo.errors import InputError, SourceError
from experiments.initialisation.grid import Cell, custom_grid
from experiments.initialisation.runs import FinishedRun, append_run, read_runs
from tests.experiments.initialisation.finished_runs import RUNS


def test_runs_are_read_back(tmp_path: Path) -> None:
    other = FinishedRun(
        Cell("rotated", 1e-3, 0, other=(("batch", 8), ("betas", (0.9, 0.98)))), RUNS[0].records, {"a": 1}
    )
    for run in (*RUNS, other, RUNS[0]):
        append_run(tmp_path / "new" / "runs.jsonl.xz", run)
    assert read_runs([tmp_path / "new"]) == [*RUNS, other]  # each cell once
    assert lzma.decompress((tmp_path / "new" / "runs.jsonl.xz").read_bytes()).count(b"\n") == 8


def test_a_file_without_finished_runs_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.xz"
    cut_short = lzma.compress(RUNS[0].to_json().encode())[:-9]
    for content in (b"plain", lzma.compress(b"{}\n"), lzma.compress(b"text\n"), cut_short):
        path.write_bytes(content)
        with pytest.raises(SourceError, match=r"runs\.jsonl\.xz: not a file of finished runs"):
            read_runs([path])


def test_an_initialisation_is_named_with_its_scale_and_its_self_bias() -> None:
    cells = custom_grid(["std 0.03 symmetric", "half-unit symmetric", "unit independent with self-bias"], [1e-3], 1)
    configs = [cell.config("a", "b") for cell in cells]
    assert [(config.start, config.scale, config.self_bias) for config in configs] == [
        ("symmetric", 0.03, False),
        ("symmetric", "half-unit", False),
        ("independent", "unit", True),
    ]
    assert cells[2].key == "masked-4x256-lr0.001-9500-unit-independent-with-self-bias-seed0"
    for start, expected in (("std x symmetric", "expected a number after std"), ("std 0.1", "start '' does not exist")):
        with pytest.raises(InputError, match=expected):
            custom_grid([start], [1e-3], 1)
