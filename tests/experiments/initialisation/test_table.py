"""The tables contain the numbers of the comparison."""

from __future__ import annotations

import csv

from experiments.initialisation.statistics import compare, estimate
from experiments.initialisation.table import as_csv, as_markdown, as_text
from tests.experiments.initialisation.finished_runs import RUNS


def test_every_format_has_the_numbers_of_the_comparison() -> None:
    table = compare(RUNS)
    text = as_text(table).splitlines()
    assert text[0].split("  ")[0] == "setting" and text[1].split() == [
        "masked", "4x256", "lr", "0.001", "100", "steps", "baseline", "2", "4.2500"]  # fmt: skip
    d, s = (estimate(values) for values in ([-2.0, -1.0], [0.5, 0.25]))
    assert f"{d.mean:+.4f} [{d.low:+.4f}, {d.high:+.4f}]" in text[2]
    assert f"{s.mean:.0%} [{s.low:.0%}, {s.high:.0%}]" in text[2] and text[2].endswith("2/2")
    assert "not reached" in text[3]
    markdown = as_markdown(table).splitlines()
    assert markdown[0].count("|") == markdown[1].count("|") == markdown[3].count("|")
    rows = list(csv.DictReader(as_csv(table).splitlines()))
    assert float(rows[1]["difference_low"]) == d.low and float(rows[1]["saved_detectable"]) == s.detectable
    assert rows[0]["difference"] == "" and rows[2]["difference_p"] == "" and float(rows[2]["difference"]) == 1.0
    assert rows[1]["reached"] == "2" and rows[1]["lr"] == "0.001"
