"""The pages of the comparison experiment show what its logs hold."""

from __future__ import annotations

import re
from pathlib import Path

from experiments.comparison.page import read_logs, with_tables

ROOT = Path(__file__).parents[3]


def test_every_table_of_the_pages_is_made_from_the_logs() -> None:
    logs = read_logs(ROOT / "results/comparison")
    for name in ("docs/comparison.md", "experiments/comparison/RESULTS.md"):
        page = (ROOT / name).read_text("utf-8")
        assert with_tables(page, logs) == page
        for table in re.findall(r"<!-- table: .*?<!-- end -->", page, re.S):
            lines = table.splitlines()[1:-1]
            assert len(lines) > 2 and len({line.count("|") for line in lines}) == 1
