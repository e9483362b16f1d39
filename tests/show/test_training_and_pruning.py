"""Training runs, pruning and the demo as text, figures and sections: the numbers are those of the results."""

from __future__ import annotations

from statistics import median

from attngeo import show
from attngeo.charts import BLUE, ORANGE
from attngeo.data import NAMES
from attngeo.show import demo_figure, demo_text, pruning_report, pruning_section, training_section
from attngeo.training import bundled_records
from attngeo.weights.scoring.score_table import layer_nulls
from attngeo.weights.scoring.verdict import verdicts
from tests.show.same import same

RECORDS = {name: bundled_records(name) for name in NAMES}


def test_curves_of_a_pair_are_those_of_the_records():
    figures = {figure.id: figure for figure in training_section(RECORDS).figures}
    for trace, (name, run) in zip(figures["training-eval-loss"].plotly["data"], RECORDS.items(), strict=True):
        assert trace["name"] == name
        same([trace["x"], trace["y"]], [[record[key] for record in run] for key in ("step", "eval_loss")])
    for score in ("symmetry", "directionality", "max_logit"):
        figure = figures[f"training-{score.replace('_', '-')}"]
        bands, lines = figure.plotly["data"][::2], figure.plotly["data"][1::2]
        for band, line, run in zip(bands, lines, RECORDS.values(), strict=True):
            same(line["y"], [median(record[score]) for record in run])
            low_and_high = [function(record[score]) for function in (min, max) for record in run]
            same(band["y"][: len(run)] + band["y"][: len(run) - 1 : -1], low_and_high)
        assert [line["line"]["color"] for line in lines] == [BLUE, ORANGE]
        assert len(figure.table[score]) == sum(len(record[score]) for run in RECORDS.values() for record in run)


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


def test_a_run_on_paper_has_a_line_for_each_layer():
    records = RECORDS["encoder"]
    axes = [ax for ax in show.training_figure(records).axes if ax.get_title(loc="left")]
    for ax, score in zip(axes, ("symmetry", "directionality", "max_logit"), strict=True):
        lines = [line for line in ax.lines if len(line.get_xdata()) == len(records)]
        drawn = [tuple(line.get_ydata()) for line in lines]
        assert drawn == list(zip(*(record[score] for record in records), strict=True))
        assert len({line.get_color() for line in lines}) == 4


def test_losses_and_plan_are_those_of_the_results(pruning):
    plan, curve = pruning
    losses, heads = pruning_section(plan, curve).figures
    full, refitted, plain, bars, of_random = losses.plotly["data"]
    same(full["y"], [curve.full] * 2)
    assert (refitted["x"], refitted["y"]) == ([10, 30], [3.125, 3.25]) and plain["y"] == [3.5]
    assert (of_random["name"], of_random["y"], bars["y"][:2]) == ("random (2 seeds)", [4.5], [4, 5])
    assert [trace["line"]["dash"] for trace in (refitted, plain)] == ["solid", "dash"]
    assert [trace["hovertemplate"].endswith("no refit") for trace in (refitted, plain)] == [False, True]
    (dots,) = heads.plotly["data"]
    assert dots["customdata"] == list(plan.labels)
    same(dots["y"], [one.cost for one in plan.removed])
    assert heads.table["head"] == [one.head for one in plan.removed]
    assert len(pruning_section(plan).figures) == len(pruning_section(curve=curve).figures) == 1


def test_the_report_lists_the_heads_of_each_layer_and_the_increases_of_the_loss(pruning):
    """The increases are without and with refit, and means over seeds."""
    lines = pruning_report(*pruning).splitlines()
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


def test_the_demo_prints_scores_nulls_verdicts_and_training(pair_scores) -> None:
    frame = pair_scores.frame
    text = demo_text(frame, RECORDS)
    (line,) = [line for line in text.splitlines() if line.startswith("random layer ")]
    levels = [layer_nulls(frame)[name, name][score] for name in NAMES for score in ("symmetry", "directionality")]
    assert line.split("  ")[1:] == [f"{level.mean:+.3f} ± {level.std:.3f}" for level in levels]
    for verdict in verdicts(frame):
        assert f"{verdict.model}: {verdict.sentence}" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    assert "over training" in text and "over training" not in demo_text(frame, {})
    *_, symmetry, _ = demo_figure(frame, RECORDS).axes
    for line, run in zip(symmetry.lines, RECORDS.values(), strict=True):
        assert line.get_xdata().tolist() == [record["step"] for record in run]
        assert line.get_ydata().tolist() == [median(record["symmetry"]) for record in run]
    assert len(demo_figure(frame, {}).axes) == 2
