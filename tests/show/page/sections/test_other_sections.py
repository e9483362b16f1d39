"""Sections of training runs, pruning and comparisons show the values of their results."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from attngeo.bundled import training

from attngeo.applications.compare.model_map import FORMS, ModelMap, Pair
from attngeo.applications.compare.origin.relation import Relation
from attngeo.applications.prune.curve import LossCurve, LossPoint
from attngeo.show.canvas import BLUE, ORANGE
from attngeo.show.page.sections import comparison_section, model_map_section, pruning_section, training_section

EXACT = {"rel": 1e-4, "abs": 1e-12}  # five significant digits


def test_curves_of_a_pair_are_those_of_the_records():
    records = {name: training(name) for name in ("encoder", "decoder")}
    figures = {figure.id: figure for figure in training_section(records).figures}
    for trace, (name, run) in zip(figures["training-eval-loss"].plotly["data"], records.items(), strict=True):
        assert trace["name"] == name
        assert trace["x"] == [record["step"] for record in run]
        assert trace["y"] == pytest.approx([record["eval_loss"] for record in run], **EXACT)
    for score in ("symmetry", "directionality", "max_logit"):
        figure = figures[f"training-{score.replace('_', '-')}"]
        bands, lines = figure.plotly["data"][::2], figure.plotly["data"][1::2]
        for band, line, run in zip(bands, lines, records.values(), strict=True):
            assert line["y"] == pytest.approx([median(record[score]) for record in run], **EXACT)
            assert band["y"][: len(run)] == pytest.approx([min(record[score]) for record in run], **EXACT)
            assert band["y"][: len(run) - 1 : -1] == pytest.approx([max(record[score]) for record in run], **EXACT)
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
    assert full["y"] == pytest.approx([curve.full] * 2, **EXACT)
    for trace, method in zip(methods, ("refit", "random"), strict=True):
        of_shares = [
            [point.loss for point in curve.points if (point.method, 100 * point.share) == (method, share)]
            for share in trace["x"]
        ]
        assert trace["y"] == pytest.approx([sum(losses) / len(losses) for losses in of_shares], **EXACT)
    assert methods[1]["name"] == "random (2 seeds)"
    spread = [point.loss for point in curve.points if point.method == "random" and point.share == 0.25]
    assert methods[1]["error_y"]["array"][0] == pytest.approx(max(spread) - sum(spread) / 2, rel=1e-3)
    (dots,) = heads.plotly["data"]
    assert dots["customdata"] == list(plan.labels)
    assert dots["y"] == pytest.approx([one.cost for one in plan.removed], **EXACT)
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


def test_changes_relation_and_distance_are_those_of_the_comparison(pair_comparison):
    # The statistic of the test is measured on the reduced shape; of models this small both cosines are the same.
    pair_comparison = replace(pair_comparison, related=replace(pair_comparison.related, cosine=0.125))
    section = comparison_section(pair_comparison)
    change, symmetry, related, distance = section.figures
    heads = pair_comparison.changes.drop_nulls("head").sort("layer", "head")
    for figure, column in ((change, "change"), (symmetry, "symmetry_change")):
        expected = heads[column].to_numpy().reshape(4, 4)
        np.testing.assert_allclose(np.array(figure.plotly["data"][0]["z"]), expected, rtol=1e-4)
    band, dot, control = related.plotly["data"]
    relation = pair_comparison.related
    assert dot["x"] + control["x"] == pytest.approx([relation.statistic, relation.control], **EXACT)
    margin = 1.96 * relation.null_std
    assert [min(band["x"]), max(band["x"])] == pytest.approx(
        [relation.null_mean - margin, relation.null_mean + margin], **EXACT
    )
    assert distance.plotly["data"][1]["x"] == pytest.approx([pair_comparison.distance.value], **EXACT)
    assert section.notes == tuple(pair_comparison.words())


def test_the_text_explains_the_figures_that_are_there(pair_comparison):
    unlike = replace(pair_comparison, changes=pair_comparison.changes.clear(), related=Relation.none("widths differ"))
    for comparison, parts in ((pair_comparison, (True, True, True)), (unlike, (False, False, True))):
        reading = comparison_section(comparison).reading
        assert tuple(word in reading for word in ("maps", "share an origin", "The distance")) == parts


def test_models_of_one_name_have_a_column_each():
    pairs = (Pair(0, 1, 0.3), Pair(0, 2, 0.1), Pair(1, 2, 0.2))
    models = ModelMap(("LlamaForCausalLM", "LlamaForCausalLM", "base"), FORMS, pairs)
    table = model_map_section(models).figures[0].table
    titles = list(table)[1:]
    assert table["model"] == titles and len(titles) == 3
    columns = [table[title] for title in titles]
    np.testing.assert_allclose(columns, models.distances[np.ix_(models.order, models.order)])


def test_distances_are_in_the_order_of_the_dendrogram(three_models):
    distances, plane = model_map_section(three_models).figures
    assert plane.plotly["layout"]["yaxis"]["scaleanchor"] == "x"  # lengths on the map are distances
    tree, heat = distances.plotly["data"]
    order = three_models.order
    np.testing.assert_allclose(np.array(heat["z"]), three_models.distances[np.ix_(order, order)], rtol=1e-4)
    joined = sorted({x for x in tree["x"] if x})
    assert joined == pytest.approx(sorted(three_models.linkage[:, 2].tolist()), **EXACT)
    points = np.array([[trace["x"][0], trace["y"][0]] for trace in plane.plotly["data"]])
    np.testing.assert_allclose(points, three_models.coordinates[order], rtol=1e-4)
    assert [trace["name"][2:] for trace in plane.plotly["data"]][order.index(0)].endswith("encoder")
