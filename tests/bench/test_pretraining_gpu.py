"""The speed measurement of pre-training runs on a CPU too and counts its operations right."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.pretraining_gpu import measure
from tests.experiments.initialisation.small_grids import prepare_small_tokens


@pytest.mark.usefixtures("one_torch_thread")
def test_steps_per_second_and_operations_are_measured(tmp_path: Path) -> None:
    lines: list[str] = []
    shape = {"heads": 2, "length": 32, "batch": 8}
    (row,) = measure(prepare_small_tokens(tmp_path), ["2x32"], ["masked"], 4, True, lines.append, **shape)
    assert row["steps_per_second"] > 0 and "steps/s" in lines[0] and "µs/step in all" in lines[1]
    # 6·parameters·tokens + 12·layers·d·length·tokens + 6·(d² + d·vocabulary)·predicted, vocabulary in tiles of 64
    work = 6 * 2 * 12 * 32**2 * 256 + 12 * 2 * 32 * 32 * 256 + 6 * (32**2 + 32 * 320) * 5 * 8
    assert row["flops"] / row["steps_per_second"] == pytest.approx(work)
