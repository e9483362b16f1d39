"""Monitor where two processes train one model: DDP and FSDP 2, on the CPU with gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("needs torch.distributed with gloo", allow_module_level=True)

from tests.training.monitoring.two_processes import CASES, records_of_one_process

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of all cases, trained by one pair of processes."""
    folder = tmp_path_factory.mktemp("processes")
    path = f"{HERE.parents[2]}:{HERE.parents[2] / 'src'}"
    done = subprocess.run(
        [sys.executable, str(HERE / "two_processes.py"), str(folder)],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(folder)},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize(("name", "wrapper"), CASES)
def test_two_processes_write_the_records_of_one(job_folder: Path, name: str, wrapper: str) -> None:
    lines = (job_folder / f"{name} {wrapper}.jsonl").read_text().splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    expected = records_of_one_process(name)
    assert [row["step"] for row in rows] == [0, 1]
    for row, single in zip(rows, expected, strict=True):
        for figure in ("symmetry", "directionality", "row_spread", "head_symmetry", "head_column_spread"):
            np.testing.assert_allclose(row[figure], single[figure], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rows[1]["max_logit"], expected[1]["max_logit"], rtol=1e-4)
    np.testing.assert_allclose(rows[0]["head_symmetry"], expected[0]["head_symmetry"], rtol=0, atol=1e-6)


def test_only_queries_and_keys_are_gathered(job_folder: Path) -> None:
    counts = json.loads((job_folder / "collectives.json").read_text())
    assert counts["bert ddp"] == 0
    # One gather per tensor: two tensors in each of the two layers, one where they are fused.
    assert counts["bert fsdp2"] == counts["llama fsdp2"] == 4 and counts["gpt2 fsdp2"] == 2
