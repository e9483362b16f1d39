"""The speed of every architecture is measured, on a CPU too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments.initialisation.__main__ import main
from experiments.initialisation.speed import ARCHITECTURES, measure_architectures
from tests.experiments.initialisation.small_grids import prepare_small_tokens


@pytest.mark.usefixtures("one_torch_thread")
def test_every_architecture_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    for settings in ARCHITECTURES.values():
        monkeypatch.setitem(settings, "length", 16)
        monkeypatch.setitem(settings, "batch", 4)
    tokens = prepare_small_tokens(tmp_path)
    rows = measure_architectures(tokens, list(ARCHITECTURES), ["1x64"], 0.05, lines.append)
    assert [row["architecture"] for row in rows] == list(ARCHITECTURES)
    assert all(row["steps_per_second"] > 0 for row in rows) and "modernbert masked 1x64" in lines[2]
    out = tmp_path / "speed.json"
    command = ["speed", "--tokens", str(tokens), "--architecture", "llama", "--size", "1x64", "--seconds", "0.05"]
    assert main([*command, "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())
    assert row["objective"] == "causal" and row["torch"] == torch.__version__
    assert (row["matmul_flops"] is None) == (row["device"] == "cpu")  # a share of it is measured on GPUs only
