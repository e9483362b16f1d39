"""The comparison of initialisations agrees with numbers worked out by hand."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest

from experiments.initialisation.grid import Cell
from experiments.initialisation.runs import FinishedRun
from experiments.initialisation.statistics import compare, equivalence_p, estimate, noncentrality, steps_saved
from experiments.initialisation.table import as_csv, as_markdown, as_text
from tests.experiments.initialisation.finished_runs import RUNS, finished_run, run_until_5


def test_steps_saved_count_to_the_first_evaluation_at_the_target() -> None:
    run = finished_run("symmetric", 0, [9.0, 6.0, 5.0, 4.0, 3.0])  # at 0, 25, 50, 75, 100

    def saved(target: float, run: FinishedRun = run) -> float | None:
        return steps_saved(run, finished_run("baseline", 0, [9.0, target]))

    assert saved(5.0) == 0.5  # a loss equal to the target counts, and nothing is interpolated
    assert saved(5.5) == 0.5
    assert saved(4.999) == 0.25
    assert saved(3.0) == 0.0
    assert saved(2.9) is None
    assert saved(4.5, finished_run("symmetric", 0, [9.0, 4.0, 6.0, 7.0, 3.5])) == 0.75  # the first time counts


def test_runs_that_end_at_a_loss_save_steps_of_the_reference() -> None:
    """The baselines are below 5 after 80 steps and never, the others after 20 and 60; 6.0 is reached at step 20."""
    runs = [
        run_until_5("baseline", 0, {0: 9.0, 40: 6.0, 80: 4.8}),
        run_until_5("baseline", 1, {0: 9.0, 50: 7.0, 100: 6.0}),
        run_until_5("unit symmetric", 0, {0: 9.0, 20: 4.9}),
        run_until_5("unit symmetric", 1, {0: 9.0, 20: 5.5, 60: 4.9}),
    ]
    _, symmetric = compare(runs)
    assert symmetric.reached == 2 and symmetric.saved == estimate([0.75, 0.8])


def test_mean_interval_and_p_are_those_of_students_t() -> None:
    """Values 1, 2, 6: mean 3, variance 7, error √(7/3); t(2; 0.975) = 4.302653, two-sided p of t = 3/1.527525."""
    found = estimate([1.0, 2.0, 6.0])
    error = math.sqrt(7 / 3)
    assert found.mean == 3.0
    assert found.low == pytest.approx(3 - 4.302652730 * error, rel=1e-9)
    assert found.high == pytest.approx(3 + 4.302652730 * error, rel=1e-9)
    t = 3 / error
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-12)  # closed form for 2 degrees of freedom
    assert found.detectable == pytest.approx(noncentrality(3) * error, rel=1e-12)


def test_one_value_has_no_interval_and_equal_values_have_p_0_or_1() -> None:
    one = estimate([0.25])
    assert one.mean == 0.25 and all(math.isnan(value) for value in (one.low, one.high, one.p, one.detectable))
    assert estimate([2.0, 2.0]).p == 0.0 and estimate([0.0, 0.0]).p == 1.0


def test_detectable_difference_against_a_published_table_and_a_simulation() -> None:
    """Tables of the t-test give the pairs needed for 80% power at the 5% level: 34 for d = 0.5, 15 for d = 0.8."""
    for n, d in ((34, 0.5), (15, 0.8)):
        assert noncentrality(n) / math.sqrt(n) <= d < noncentrality(n - 1) / math.sqrt(n - 1)
    rng = np.random.default_rng(0)
    for n, quantile in ((3, 4.30265273), (5, 2.77644511)):
        values = rng.normal(noncentrality(n) / math.sqrt(n), 1, (200_000, n))
        t = values.mean(1) / (values.std(1, ddof=1) / math.sqrt(n))
        assert (abs(t) > quantile).mean() == pytest.approx(0.8, abs=0.004)


def test_the_comparison_is_paired_by_seed() -> None:
    baseline, symmetric, authors = compare(RUNS)
    assert (baseline.cell.start, baseline.seeds, baseline.losses) == ("baseline", (0, 1), (4.0, 4.5))
    assert baseline.difference is None and baseline.saved is None
    assert symmetric.seeds == (0, 1) and symmetric.losses == (2.0, 3.5) and symmetric.reached == 2
    assert symmetric.difference == estimate([-2.0, -1.0])
    assert symmetric.saved == estimate([0.5, 0.25])  # 4.0 is reached at step 50, 4.5 at step 75
    assert authors.reached == 0 and authors.saved is not None and authors.saved.mean == 0.0
    assert authors.difference is not None and authors.difference.mean == 1.0


def test_runs_of_different_settings_are_not_compared() -> None:
    other = FinishedRun(Cell("baseline", 1e-3, 0, steps=100, other=(("batch", 8),)), RUNS[1].records, {})
    table = compare([*RUNS, other])
    assert [one.seeds for one in table if one.cell.start == "baseline"] == [(0, 1), (0,)]


def test_a_run_that_diverged_is_counted_and_is_in_no_mean() -> None:
    runs = [*RUNS[:4], finished_run("unit symmetric", 3, [9.0], diverged=17), finished_run("baseline", 3, [9.0, 4.0])]
    baseline, symmetric = compare(runs)
    assert baseline.seeds == (0, 1, 3) and symmetric.seeds == (0, 1) and symmetric.diverged == ((3, 17),)
    (alone,) = compare([finished_run("negative", 0, [], diverged=1)])
    assert alone.losses == () and alone.difference is None and alone.diverged == ((0, 1),)
    assert "seed 3 at step 17" in as_text([baseline, symmetric]) and "seed 0 at step 1" in as_markdown([alone])


def test_equivalence_is_shown_where_the_90_percent_interval_lies_within_the_margin() -> None:
    """Values −1, 0, 4: mean 1, error √(7/3); t(2; 0.95) = 2.919986, so the 90% interval ends at 1 + 4.460300."""
    values = [-1.0, 0.0, 4.0]
    end = 1 + 2.919985580 * math.sqrt(7 / 3)
    assert equivalence_p(values, end) == pytest.approx(0.05, rel=1e-8)
    assert equivalence_p([-value for value in values], end) == pytest.approx(0.05, rel=1e-8)
    assert equivalence_p(values, 1.0) == pytest.approx(0.5)  # the mean lies on the margin
    assert equivalence_p(values, 0.5) > 0.5
    assert equivalence_p([0.1, 0.1], 0.2) == 0.0 and equivalence_p([0.3, 0.3], 0.2) == 1.0
    assert math.isnan(equivalence_p([0.0], 1.0))


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
