"""The speed of every architecture is measured, on a CPU too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiments.initialisation.speed import measure
from tests.experiments.initialisation.small_grids import prepare_small_tokens

ROOT = Path(__file__).parents[3]
NAMES = {"BERT": "bert", "pre-norm BERT": "pre-norm-bert", "ModernBERT": "modernbert", "LLaMA": "llama"}


@pytest.mark.usefixtures("one_torch_thread")
def test_operations_are_counted(tmp_path: Path) -> None:
    lines: list[str] = []
    shape = {"heads": 2, "length": 32, "batch": 8}
    row = measure(prepare_small_tokens(tmp_path), "bert", "2x32", 4, lines.append, **shape)
    assert row["steps_per_second"] > 0 and "steps/s" in lines[0]
    # 6·parameters·tokens + 12·layers·d·length·tokens + 6·(d² + d·vocabulary)·predicted, vocabulary in tiles of 64
    work = 6 * 2 * 12 * 32**2 * 256 + 12 * 2 * 32 * 32 * 256 + 6 * (32**2 + 32 * 320) * 5 * 8
    assert row["flops"] / row["steps_per_second"] == pytest.approx(work)


@pytest.mark.parametrize("page", ["experiments/initialisation/RESULTS", "docs/benchmarks"])
def test_the_speeds_in_the_docs_are_those_of_the_logs(page: str) -> None:
    text = (ROOT / f"{page}.md").read_text("utf-8")
    for title, name in NAMES.items():
        (line,) = (line for line in text.splitlines() if re.match(rf"\| {title} \|( [\d.]+( steps/s)?)? \|", line))
        rows = {row["size"]: row for row in json.loads((ROOT / f"results/training/speed-{name}.json").read_text())}
        rates = {size: row["steps_per_second"] for size, row in rows.items()}
        if title == "BERT":  # which was measured beside the Trainer at this size
            rates["4x256"] = json.loads((ROOT / "results/training/trainer_gpu.json").read_text())["4x256"]["steps/s"]
        share = rows["12x768"]["flops"] / rows["12x768"]["matmul_flops"]
        expected = [f"{rates[size]:.1f}" if size in rates else "" for size in ("4x256", "12x768")]
        cells = [cell.strip().removesuffix(" steps/s") for cell in line.split("|")[2:5]]
        assert cells == [*expected, f"{share:.1%}"]
