"""The comparison of starts against numbers worked out by hand, and its tables."""

from __future__ import annotations

import csv
import lzma
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngeo.errors import SourceError
from experiments.initialisation.grid import Cell
from experiments.initialisation.statistics import (
    Finished,
    append_run,
    compare,
    mean_of,
    noncentrality,
    read_runs,
    speed_up,
)
from experiments.initialisation.table import as_csv, as_markdown, as_text


def finished(start: str, seed: int, losses: list[float], **facts: Any) -> Finished:
    """A run of 100 steps with these held-out losses at equal distances."""
    steps = [round(100 * i / max(1, len(losses) - 1)) for i in range(len(losses))]
    records = tuple({"step": step, "eval_loss": loss} for step, loss in zip(steps, losses, strict=True))
    return Finished(Cell(start, 1e-3, seed, steps=100), records, {"seconds": 1.0, **facts})


def test_steps_saved() -> None:
    records = finished("symmetric", 0, [9.0, 6.0, 5.0, 4.0, 3.0]).records  # at 0, 25, 50, 75, 100
    assert speed_up(records, 5.0) == 0.5  # at the target counts, and nothing is interpolated
    assert speed_up(records, 5.5) == 0.5
    assert speed_up(records, 4.999) == 0.25
    assert speed_up(records, 3.0) == 0.0
    assert speed_up(records, 2.9) is None
    assert speed_up(finished("symmetric", 0, [9.0, 4.0, 6.0, 7.0, 3.5]).records, 4.5) == 0.75  # the first time


def test_mean_interval_and_p() -> None:
    """Values 1, 2, 6: mean 3, variance 7, error √(7/3); t(2; 0.975) = 4.302653, two-sided p of t = 3/1.527525."""
    found = mean_of([1.0, 2.0, 6.0])
    error = math.sqrt(7 / 3)
    assert found.mean == 3.0
    assert found.low == pytest.approx(3 - 4.302652730 * error, rel=1e-9)
    assert found.high == pytest.approx(3 + 4.302652730 * error, rel=1e-9)
    t = 3 / error
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-12)  # closed form for 2 degrees of freedom
    assert found.detectable == pytest.approx(noncentrality(3) * error, rel=1e-12)


def test_one_value_and_values_without_spread() -> None:
    one = mean_of([0.25])
    assert one.mean == 0.25 and all(math.isnan(value) for value in (one.low, one.high, one.p, one.detectable))
    assert mean_of([2.0, 2.0]).p == 0.0 and mean_of([0.0, 0.0]).p == 1.0


def test_detectable_difference_against_a_published_table_and_a_simulation() -> None:
    """Pairs needed at the 5% level for 80% power, as tables of the t-test have them: 34 for d = 0.5, 15 for 0.8."""
    for n, d in ((34, 0.5), (15, 0.8)):
        assert noncentrality(n) / math.sqrt(n) <= d < noncentrality(n - 1) / math.sqrt(n - 1)
    draw = np.random.default_rng(0)
    for n, quantile in ((3, 4.30265273), (5, 2.77644511)):
        values = draw.normal(noncentrality(n) / math.sqrt(n), 1, (200_000, n))
        t = values.mean(1) / (values.std(1, ddof=1) / math.sqrt(n))
        assert (abs(t) > quantile).mean() == pytest.approx(0.8, abs=0.004)


RUNS = [
    finished("unit symmetric", 0, [9.0, 5.0, 4.0, 3.0, 2.0]),
    finished("baseline", 0, [9.0, 8.0, 6.0, 5.0, 4.0]),
    finished("baseline", 1, [9.0, 8.0, 7.0, 5.0, 4.5]),
    finished("unit symmetric", 1, [9.0, 5.0, 4.6, 4.0, 3.5]),
    finished("unit symmetric", 2, [9.0, 1.0]),  # no baseline of this seed
    finished("authors", 0, [9.0, 8.0, 7.0, 6.0, 5.0]),
]


def test_comparison_is_paired_by_seed() -> None:
    baseline, symmetric, authors = compare(RUNS)
    assert (baseline.cell.start, baseline.seeds, baseline.losses) == ("baseline", (0, 1), (4.0, 4.5))
    assert baseline.difference is None and baseline.saved is None
    assert symmetric.seeds == (0, 1) and symmetric.losses == (2.0, 3.5) and symmetric.reached == 2
    assert symmetric.difference == mean_of([-2.0, -1.0])
    assert symmetric.saved == mean_of([0.5, 0.25])  # 4.0 is reached at step 50, 4.5 at step 75
    assert authors.reached == 0 and authors.saved is not None and authors.saved.mean == 0.0
    assert authors.difference is not None and authors.difference.mean == 1.0


def test_comparison_with_another_start() -> None:
    baseline, symmetric, authors = compare(RUNS, "unit symmetric")
    assert symmetric.difference is None and symmetric.seeds == (0, 1, 2)
    assert baseline.difference == mean_of([2.0, 1.0]) and baseline.reached == 0
    assert authors.difference is not None and authors.difference.mean == 3.0
    text = as_text([baseline, symmetric, authors])
    assert "against unit symmetric [95%]" in text and "baseline's" not in text and "{" not in text
    assert {row["against"] for row in csv.DictReader(as_csv([authors]).splitlines())} == {"unit symmetric"}


def test_other_settings_are_not_mixed() -> None:
    other = Finished(Cell("baseline", 1e-3, 0, steps=100, other=(("batch", 8),)), RUNS[1].records, {})
    table = compare([*RUNS, other])
    assert [one.seeds for one in table if one.cell.start == "baseline"] == [(0, 1), (0,)]


def test_a_run_that_diverged_is_counted_and_is_in_no_mean() -> None:
    runs = [*RUNS[:4], finished("unit symmetric", 3, [9.0], diverged=17), finished("baseline", 3, [9.0, 4.0])]
    baseline, symmetric = compare(runs)
    assert baseline.seeds == (0, 1, 3) and symmetric.seeds == (0, 1) and symmetric.diverged == ((3, 17),)
    (alone,) = compare([finished("negative", 0, [], diverged=1)])
    assert alone.losses == () and alone.difference is None and alone.diverged == ((0, 1),)
    assert "seed 3 at step 17" in as_text([baseline, symmetric]) and "seed 0 at step 1" in as_markdown([alone])


def test_tables() -> None:
    table = compare(RUNS)
    text = as_text(table).splitlines()
    assert text[0].split("  ")[0] == "setting" and text[1].split() == [
        "masked", "4x256", "lr", "0.001", "100", "steps", "baseline", "2", "4.2500"]  # fmt: skip
    d, s = (mean_of(values) for values in ([-2.0, -1.0], [0.5, 0.25]))
    assert f"{d.mean:+.4f} [{d.low:+.4f}, {d.high:+.4f}]" in text[2]
    assert f"{s.mean:.0%} [{s.low:.0%}, {s.high:.0%}]" in text[2] and text[2].endswith("2/2")
    assert "not reached" in text[3]
    markdown = as_markdown(table).splitlines()
    assert markdown[0].count("|") == markdown[1].count("|") == markdown[3].count("|")
    rows = list(csv.DictReader(as_csv(table).splitlines()))
    assert float(rows[1]["difference_low"]) == d.low and float(rows[1]["saved_detectable"]) == s.detectable
    assert rows[0]["difference"] == "" and rows[2]["difference_p"] == "" and float(rows[2]["difference"]) == 1.0
    assert rows[1]["reached"] == "2" and rows[1]["lr"] == "0.001"


def test_runs_are_read_back(tmp_path: Path) -> None:
    other = Finished(Cell("rotated", 1e-3, 0, other=(("batch", 8), ("betas", (0.9, 0.98)))), RUNS[0].records, {"a": 1})
    for run in (*RUNS, other, RUNS[0]):
        append_run(tmp_path / "new" / "runs.jsonl.xz", run)
    assert read_runs([tmp_path / "new"]) == [*RUNS, other]  # each once
    assert lzma.decompress((tmp_path / "new" / "runs.jsonl.xz").read_bytes()).count(b"\n") == 8


def test_files_that_hold_no_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.xz"
    cut_short = lzma.compress(RUNS[0].line().encode())[:-9]
    for content in (b"plain", lzma.compress(b"{}\n"), lzma.compress(b"text\n"), cut_short):
        path.write_bytes(content)
        with pytest.raises(SourceError, match=r"runs\.jsonl\.xz: not a file of finished runs"):
            read_runs([path])
