"""The figures of RESULTS.md, the record of the initialisations, are those of the logs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.initialisation.own_rate import at_best_rates
from experiments.initialisation.page.accuracy import accuracies, accuracy_markdown
from experiments.initialisation.page.contrasts import Contrast, contrast_markdown
from experiments.initialisation.page.plateau import plateau_markdown
from experiments.initialisation.page.scale import scale_markdown
from experiments.initialisation.page.tables import tables, with_tables
from experiments.initialisation.page.words import difference_text, holm, loss_text, p_text, saved_text
from experiments.initialisation.runs import FinishedRun, read_runs
from experiments.initialisation.statistics import Estimate, compare
from tests.experiments.initialisation.finished_runs import finished_run

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "experiments/initialisation/RESULTS.md"


@pytest.fixture(scope="module")
def runs() -> list[FinishedRun]:
    return read_runs([ROOT / "results/initialisation", ROOT / "results/initialisation_grid"])


def test_every_table_of_the_page_is_made_from_the_logs(runs):
    page = PAGE.read_text("utf-8")
    assert with_tables(page, runs) == page
    made = tables(runs)
    assert len(made) >= 15
    assert [name for name in made if f"<!-- table: {name} -->" not in page] == []


def test_every_interval_in_the_text_is_one_of_the_logs(runs):
    """Every "difference [low, high], p" and "share% [low, high]" outside the tables belongs to two initialisations."""
    known: set[str] = set()
    modern = [run for run in runs if run.cell.model == "ModernBERT" and run.cell.size == "4x256"]
    compared = [compare(runs, against) for against in {run.cell.start for run in runs}]
    for comparisons in (*compared, compare(at_best_rates(modern))):
        for one in comparisons:
            if one.difference is not None and one.saved is not None:
                known |= {difference_text(one.difference)}
                known |= {f"{difference_text(one.difference)}, p {p_text(one.difference.p)}"}
                known |= {saved_text(one.saved), f"{saved_text(one.saved)}, p {p_text(one.saved.p)}"}
    text = re.sub(r"<!-- table.*?<!-- end -->|<!--=.*?-->|<!--/-->", "", PAGE.read_text("utf-8"), flags=re.DOTALL)
    text = " ".join(text.split())
    written = re.findall(r"(?:[+−]\d\.\d{3}|\d+%) \[[^\]]*\](?:, p [\d.e−-]*\d)?", text)
    assert len(written) >= 8
    assert [figure for figure in written if figure not in known] == []


def test_accuracies_are_compared_by_seed_and_adjusted_for_the_single_tasks():
    """The differences of two seeds are 0.1 and 0.3, and 0 and 0: the mean of both tasks is looked at afterwards."""
    tuned = {"baseline": [(0.5, 0.6), (0.5, 0.6)], "a": [(0.6, 0.6), (0.8, 0.6)]}
    some = []
    for start, values in tuned.items():
        for seed, (order, same) in enumerate(values):
            run = finished_run(start, seed, [9.0, 8.0])
            some.append(replace(run, facts=run.facts | {"fine_tuning": {"order": order, "same document": same}}))
    lines = [[text.strip() for text in line.split("|")[1:-1]] for line in accuracy_markdown(accuracies(some), {})
             .splitlines()[2:]]  # fmt: skip
    p = 2 * (0.5 - math.atan(0.2 / 0.1) / math.pi)  # one degree of freedom
    assert lines[3:] == [
        ["a", "order", "2", "70.0%", "+20.0 [−107.1, +147.1]", f"{p:.2g}", f"{2 * p:.2g}"],
        ["a", "same document", "2", "60.0%", "+0.0 [+0.0, +0.0]", "1", "1"],
        ["a", "mean of both, post hoc", "2", "65.0%", "+10.0 [−53.5, +73.5]", f"{p:.2g}", ""],
    ]
    assert [line[3:] for line in lines[:3]] == [["50.0%", "", "", ""], ["60.0%", "", "", ""], ["55.0%", "", "", ""]]


def test_contrasts_are_paired_by_seed_and_tested_for_difference_and_equivalence():
    """Seeds 0 and 1 have both sides; −0.001 and +0.001 lie within the margin, 1.0 and 1.2 do not."""
    losses = {"a": [2.0, 3.0, 9.0], "b": [2.001, 2.999], "c": [1.0, 1.8]}
    some = [finished_run(start, seed, [9.0, loss]) for start in losses for seed, loss in enumerate(losses[start])]
    contrasts = [Contrast("a", "b", "one"), Contrast("a", "c", "other"), Contrast("a", "missing", "")]
    lines = contrast_markdown(some, contrasts, {"a": "A"}).splitlines()[2:]
    assert [line.split(" | ")[1:6] for line in lines] == [
        ["A", "b", "one", "2", "+0.000 [−0.013, +0.013]"],
        ["A", "c", "other", "2", "+1.100 [−0.171, +2.371]"],
    ]
    # One degree of freedom: P(T > t) = 1/2 − arctan(t)/π. Error 0.001, t = 20; error 0.1, t = 11, two-sided.
    p = [f"{0.5 - math.atan(0.02 / 0.001) / math.pi:.2g}", f"{2 * (0.5 - math.atan(1.1 / 0.1) / math.pi):.2g}"]
    assert lines[0].split(" | ")[8].rstrip(" |") == p[0]
    assert lines[1].split(" | ")[6] == p[1]
    assert contrast_markdown(some, contrasts[2:], {}) == ""


def test_the_plateau_ends_at_the_first_evaluation_below_it():
    """Evaluations are at steps 0, 50, 100. The second seed of `slow` never leaves the plateau, `stuck` in no seed."""
    losses = {"fast": [(9.0, 5.4, 4.0), (9.0, 5.5, 3.0)], "slow": [(9.0, 6.0, 5.0), (9.0, 6.0, 5.6)],
              "stuck": [(9.0, 6.0, 5.8)]}  # fmt: skip
    some = [finished_run(start, seed, list(loss)) for start in losses for seed, loss in enumerate(losses[start])]
    lines = plateau_markdown(some, ("slow", "missing", "stuck", "fast"), (some[0].cell.lr, 1e-9), {"fast": "F"})
    assert [[text.strip() for text in line.split("|")[1:-1]] for line in lines.splitlines()[2:]] == [
        ["slow", "2", "5.300", "100 to never", "", "", ""],
        ["stuck", "1", "5.800", "never", "", "", ""],
        ["F", "2", "3.500", "50 to 100", "", "", ""],
    ]
    (line,) = plateau_markdown(some, ("fast",), (some[0].cell.lr,), {}, below=4.0).splitlines()[2:]
    assert line == "| fast | 2 | 3.500 | 100 to never |"


def test_the_table_of_scales_compares_the_forms_over_the_seeds_that_all_scales_share():
    """Seed 2 was not run at std 0.03. The unit scale of width 256 has no independent form, so it has no line."""
    losses = {"baseline": [4.0, 5.0, 9.0], "symmetric": [4.5, 5.5, 1.0], "std 0.03 independent": [3.0, 4.0],
              "std 0.03 symmetric": [2.0, 3.5], "unit symmetric": [1.0, 1.0]}  # fmt: skip
    some = [finished_run(start, seed, [9.0, loss]) for start in losses for seed, loss in enumerate(losses[start])]
    lines = [[text.strip() for text in line.split("|")[1:-1]] for line in scale_markdown(some).splitlines()[2:]]
    assert [line[:2] + line[3:4] + line[5:6] for line in lines] == [
        ["0.02", "", "+0.500 [+0.500, +0.500]", "+0.500 [+0.500, +0.500]"],
        ["0.03", "−1.000 [−1.000, −1.000]", "−1.750 [−4.927, +1.427]", "−0.750 [−3.927, +2.427]"],
    ]
    assert [(line[2], line[4]) for line in lines] == [("100", "100 to never"), ("100", "100")]


def test_forms_are_means_over_the_seeds_of_an_architecture(runs):
    """A decoder without rotary embedding has no scores over offsets; a LLaMA has."""
    lines = [[text.strip() for text in line.split("|")[1:-1]] for line in tables(runs)["forms"].splitlines()[2:]]
    named = {tuple(line[:3]): line[3:] for line in lines}
    for model, objective, rate in (("LLaMA", "causal", 1e-3), ("pre-norm BERT", "masked", 1e-3)):
        same = [run for run in runs if (run.cell.model, run.cell.objective, run.cell.lr, run.cell.start) ==
                (model, objective, rate, "baseline")]  # fmt: skip
        seeds, at_zero, over_offsets, *_ = named[f"{model}, {objective}", "1e-3", "baseline (std 0.02, independent)"]
        assert seeds == str(len(same))
        expected = [sum(run.records[-1]["symmetry"][layer] for run in same) / len(same) for layer in range(4)]
        assert [float(text.replace("−", "-")) for text in at_zero.split(", ")] == pytest.approx(expected, abs=0.0051)
        assert bool(over_offsets) == (model == "LLaMA")


def test_figures_are_rounded_once_with_a_minus_sign():
    value = Estimate(-0.0205, -0.0554999, 0.0144, 0.0131, 1.0)
    assert difference_text(value) == "−0.021 [−0.055, +0.014]"
    assert saved_text(Estimate(0.3349, -0.051, 0.5, 0.1, 1.0)) == "33% [−5, 50]"
    assert difference_text(Estimate(0.1, math.nan, math.nan, math.nan, math.nan)) == "+0.100"
    assert loss_text(3.64949) == "3.649" and p_text(math.nan) == "" and p_text(0.0001849) == "0.00018"


def test_p_values_are_adjusted_for_their_number():
    adjusted = holm([0.04, math.nan, 0.001, 0.03])
    assert adjusted[2] == pytest.approx(0.003) and adjusted[3] == pytest.approx(0.06)
    assert adjusted[0] == pytest.approx(0.06) and math.isnan(adjusted[1])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
