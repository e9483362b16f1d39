"""Training runs, pruning and the demo as text, figures and sections: the numbers are those of the results."""

from __future__ import annotations

from statistics import median

import polars as pl
import pytest

import attngeo
from attngeo.applications.prune.curve import LossCurve, LossPoint
from attngeo.applications.prune.plan import PrunePlan, RemovedHead
from attngeo.charts import BLUE, ORANGE
from attngeo.data import NAMES, bundled
from attngeo.show import demo_figure, demo_text, pruning_report, pruning_section, training_section
from attngeo.training import bundled_records
from attngeo.weights.scoring.score_table import NullLevel
from attngeo.weights.scoring.verdict import verdicts
from tests.show.same import same

CURVE = LossCurve(
    "made",
    "next token",
    3.0,
    (
        LossPoint("sensitivity", 2, 0.1, False, 3.5),
        LossPoint("sensitivity", 2, 0.1, True, 3.125),
        LossPoint("sensitivity", 6, 0.3, True, 3.25),
        LossPoint("random", 2, 0.1, False, 4.0, seed=0),
        LossPoint("random", 2, 0.1, False, 5.0, seed=1),
    ),
)


def test_curves_of_a_pair_are_those_of_the_records():
    records = {name: bundled_records(name) for name in ("encoder", "decoder")}
    figures = {figure.id: figure for figure in training_section(records).figures}
    for trace, (name, run) in zip(figures["training-eval-loss"].plotly["data"], records.items(), strict=True):
        assert trace["name"] == name
        assert trace["x"] == [record["step"] for record in run]
        same(trace["y"], [record["eval_loss"] for record in run])
    for score in ("symmetry", "directionality", "max_logit"):
        figure = figures[f"training-{score.replace('_', '-')}"]
        bands, lines = figure.plotly["data"][::2], figure.plotly["data"][1::2]
        for band, line, run in zip(bands, lines, records.values(), strict=True):
            same(line["y"], [median(record[score]) for record in run])
            same(band["y"][: len(run)], [min(record[score]) for record in run])
            same(band["y"][: len(run) - 1 : -1], [max(record[score]) for record in run])
        assert [line["line"]["color"] for line in lines] == [BLUE, ORANGE]
        assert len(figure.table[score]) == sum(len(record[score]) for run in records.values() for record in run)


def test_a_single_run_shows_its_layers_and_gaps():
    records = [
        {"step": 0, "stack": ["encoder", "decoder"], "layer": [0, 0], "symmetry": [0.1, None]},
        {"step": 5, "stack": ["encoder", "decoder"], "layer": [0, 0], "symmetry": [0.2, None], "loss": 3.0},
        {"step": 7},
    ]
    loss, symmetry = training_section({"run": records}).figures
    assert loss.plotly["data"][0]["y"] == [3.0]
    assert [trace["y"] for trace in symmetry.plotly["data"][1:]] == [[0.1, 0.2], [0.1, 0.2]]  # median and layer 0
    assert symmetry.table["symmetry"] == [0.1, 0.2]
    assert training_section({"empty": []}).figures == ()


def test_losses_and_plan_are_those_of_the_results(pruning):
    plan, curve = pruning
    losses, heads = pruning_section(plan, curve).figures
    full, *methods = losses.plotly["data"]
    same(full["y"], [curve.full] * 2)
    of_refit, bars, of_random = methods
    for trace, method in ((of_refit, "refit"), (of_random, "random")):
        own = [one for one in curve.points if one.method == method]
        losses = [[one.loss for one in own if 100 * one.share == x] for x in trace["x"]]
        same(trace["y"], [sum(some) / len(some) for some in losses])
    assert of_random["name"] == "random (2 seeds)"
    spread = [point.loss for point in curve.points if point.method == "random" and point.share == 0.25]
    same(bars["y"][:2], sorted(spread))
    (dots,) = heads.plotly["data"]
    assert dots["customdata"] == list(plan.labels)
    same(dots["y"], [one.cost for one in plan.removed])
    assert heads.table["head"] == [one.head for one in plan.removed]
    assert len(pruning_section(plan).figures) == len(pruning_section(curve=curve).figures) == 1


def test_solid_curves_are_refitted_and_dashed_ones_are_not():
    points = tuple(LossPoint("refit", 4, 0.25, refit, 3.5 - refit) for refit in (False, True))
    (figure,) = pruning_section(curve=LossCurve("model", "next token", 3.0, points)).figures
    _, *traces = figure.plotly["data"]
    assert {trace["line"]["dash"]: trace["y"] for trace in traces} == {"dash": [3.5], "solid": [2.5]}
    assert [trace["hovertemplate"].endswith("no refit") for trace in traces] == [
        trace["line"]["dash"] == "dash" for trace in traces
    ]


def test_a_run_on_paper_has_a_line_for_each_layer():
    records = bundled_records("encoder")
    axes = [ax for ax in attngeo.show.training_figure(records).axes if ax.get_title(loc="left")]
    for ax, score in zip(axes, ("symmetry", "directionality", "max_logit"), strict=True):
        lines = [line for line in ax.lines if len(line.get_xdata()) == len(records)]
        drawn = [tuple(line.get_ydata()) for line in lines]
        assert drawn == list(zip(*(record[score] for record in records), strict=True))
        assert len({line.get_color() for line in lines}) == 4


def test_the_report_lists_the_heads_of_each_layer_and_the_increases_of_the_loss():
    """The increases are without and with refit, and means over seeds."""
    removed = (RemovedHead("decoder", 3, 7, 0.25), RemovedHead("decoder", 0, 1, 0.5), RemovedHead("decoder", 3, 2, 1.0))
    plan = PrunePlan("made", "llama", "", ("decoder",), 20, "sensitivity", "query", removed, notes=("a note",))
    lines = pruning_report(plan, CURVE).splitlines()
    assert lines[:3] == ["3 of 20 heads (15.0%) of llama, chosen by sensitivity", "a note", ""]
    assert [line.split() for line in lines[3:6]] == [
        ["layer", "removed", "cost"],
        ["L0", "H1", "0.5"],
        ["L3", "H7", "H2", "0.25", "1"],
    ]
    assert lines[7] == "made: next token loss 3.0000 with all heads; increase without / with refit"
    assert [line.split() for line in lines[8:]] == [
        ["method", "10%", "30%"],
        ["sensitivity", "+0.500", "/", "+0.125", "+0.250"],
        ["random", "+1.500", "-"],
    ]


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return pl.concat(
        attngeo.score(str(bundled(name)), nulls=False).frame.with_columns(model=pl.lit(name)) for name in NAMES
    )


def nulls(std: float | None) -> dict[tuple[str, str], dict[str, NullLevel]]:
    """Return a made-up null, the same for both models."""
    return {(name, name): {"symmetry": NullLevel(0.25, std), "directionality": NullLevel(0, std)} for name in NAMES}


def test_the_null_is_printed_as_given(frame: pl.DataFrame) -> None:
    (line,) = [line for line in demo_text(frame, nulls(0.125), (), {}).splitlines() if line.startswith("random layer ")]
    assert line.split("  ")[1:] == ["+0.250 ± 0.125", "+0.000 ± 0.125"] * 2
    (line,) = [line for line in demo_text(frame, nulls(None), (), {}).splitlines() if line.startswith("random layer ")]
    assert line.split()[2:] == ["+0.250", "+0.000"] * 2


def test_training_is_shown_where_it_is_known(frame: pl.DataFrame) -> None:
    records = {name: bundled_records(name) for name in NAMES}
    assert "over training" in demo_text(frame, nulls(0.1), (), records)
    assert "over training" not in demo_text(frame, nulls(0.1), (), {})
    assert len(demo_figure(frame, nulls(0.1), {}).axes) == 2
    lower = demo_figure(frame, nulls(0.1), records).axes[2:]
    for ax, score in zip(lower, ("symmetry", "directionality"), strict=True):
        for line, name in zip(ax.lines, NAMES, strict=True):
            assert line.get_xdata().tolist() == [record["step"] for record in records[name]]
            assert line.get_ydata().tolist() == [median(record[score]) for record in records[name]]


def test_verdicts_are_printed_below_the_table(frame: pl.DataFrame) -> None:
    text = demo_text(frame, nulls(0.1), verdicts(frame), {})
    for verdict in verdicts(frame):
        assert f"{verdict.model}: {verdict.sentence}" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
