"""Monitor where two processes train one model: DDP, FSDP 2 and FSDP 1, on the CPU over gloo."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("needs torch.distributed with gloo", allow_module_level=True)

from tests.dynamics.monitoring.monitor_job import CASES, alone  # noqa: E402

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases in one pair of processes."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = f"{HERE.parents[2]}:{HERE.parents[2] / 'src'}"
    done = subprocess.run(
        [sys.executable, str(HERE / "monitor_job.py"), str(folder), port],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(folder)},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize(("name", "way"), CASES)
def test_one_process_writes_what_a_single_one_would(job: Path, name: str, way: str) -> None:
    rows: list[dict[str, Any]] = [json.loads(line) for line in (job / f"{name} {way}.jsonl").read_text().splitlines()]
    expected = alone(name)
    assert [row["step"] for row in rows] == [0, 1]
    for row, single in zip(rows, expected, strict=True):
        for figure in ("symmetry", "directionality", "row_spread", "head_symmetry", "head_column_spread"):
            np.testing.assert_allclose(row[figure], single[figure], rtol=1e-4, atol=1e-5)
    if way in ("ddp", "fsdp2"):
        np.testing.assert_allclose(rows[1]["max_logit"], expected[1]["max_logit"], rtol=1e-4)
    np.testing.assert_allclose(rows[0]["head_symmetry"], expected[0]["head_symmetry"], rtol=0, atol=1e-6)


def test_only_queries_and_keys_are_put_together(job: Path) -> None:
    counts = json.loads((job / "collectives.json").read_text())
    assert counts["bert ddp"] == 0
    # one gathering a tensor: two in each of the two layers, one where they are fused
    assert counts["bert fsdp2"] == counts["llama fsdp2"] == 4 and counts["gpt2 fsdp2"] == 2
