"""Compared models as text, figures and sections: every head and every model stands where its labels say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import attngeo
from attngeo.applications.compare.change import COLUMNS
from attngeo.applications.compare.comparison import FORMS, ModelComparison, ModelMap
from attngeo.applications.compare.relation import Relation
from attngeo.io.tables import table_of
from attngeo.show import comparison_report, comparison_section, model_map_report, model_map_section
from tests.show.same import same


def table(text: str, title: str) -> list[list[str]]:
    """Return the rows of the table below a line that begins with `title`."""
    return [line.split() for line in text.partition(title)[2].partition("\n\n")[0].splitlines()[1:]]


def test_the_heads_that_changed_most_are_listed(comparison) -> None:
    text = comparison_report(comparison, heads=3)
    titles, *rows = table(text, "heads, by change (3 of 16)")
    most = comparison.changes.drop_nulls("head").sort("change", descending=True).select("layer", "head", "change")
    assert [row[:3] for row in rows] == [[str(layer), str(head), f"{by:.3g}"] for layer, head, by in most.rows()[:3]]
    assert titles[:5] == ["layer", "head", "change", "cosine", "match"]
    assert len(table(comparison_report(comparison, heads=None), "heads, by change (16 of 16)")) == 17
    changes = [float(row[1]) for row in table(text, "layers, by change")[1:]]
    assert len(changes) == 4 and changes == sorted(changes, reverse=True)


def test_changes_relation_and_distance_are_those_of_the_comparison(comparison) -> None:
    # The statistic of the test is measured on the reduced shape; of models this small both cosines are the same.
    comparison = replace(comparison, related=replace(comparison.related, cosine=0.125))
    section = comparison_section(comparison)
    *maps, related, distance = section.figures
    heads = comparison.changes.drop_nulls("head").sort("layer", "head")
    for figure, column in zip(maps, ("change", "symmetry_change"), strict=True):
        expected = heads[column].to_numpy().reshape(4, 4)  # [layers, heads]
        np.testing.assert_allclose(np.array(figure.plotly["data"][0]["z"]), expected, rtol=1e-4)
    band, _, dot, control = related.plotly["data"]
    relation = comparison.related
    same(dot["x"] + control["x"], [relation.statistic, relation.control])
    margin = 1.96 * relation.null_std
    same([min(band["x"]), max(band["x"])], [relation.null_mean - margin, relation.null_mean + margin])
    same(distance.plotly["data"][2]["x"], [comparison.distance.value])
    assert section.notes == tuple(comparison.words())


def test_the_colours_of_models_that_do_not_differ_begin_at_no_change() -> None:
    """A change of the form has no sign, so its colours have none either; the symmetry rose or fell by 0."""
    encoder = attngeo.bundled("encoder")
    comparison = attngeo.compare(encoder, encoder, draws=99)
    drawn = [figure.plotly["data"][0] for figure in comparison_section(comparison).figures[:2]]
    assert [(trace["zmin"], trace["zmax"]) for trace in drawn] == [(0, 1), (-1, 1)]


def test_models_without_comparable_forms_are_described_in_words(comparison) -> None:
    related = Relation.none("wide and narrow have the widths 128 and 32: forms of different width have no cosine")
    unlike = ModelComparison("wide", "narrow", table_of([], COLUMNS), related)
    drawn = "".join(text.get_text() for ax in unlike.plot().axes for text in ax.texts)
    assert all("".join(line.split()) in "".join(drawn.split()) for line in unlike.words())
    unlike = replace(unlike, distance=comparison.distance)
    for result, parts in ((comparison, (True, True, True)), (unlike, (False, False, True))):
        reading = comparison_section(result).reading
        assert tuple(word in reading for word in ("maps", "share an origin", "The distance")) == parts


def test_distances_are_printed_and_drawn_in_the_order_of_their_names(three_models) -> None:
    models = three_models
    order = models.order
    names, expected = [models.names[i] for i in order], models.distances[np.ix_(order, order)]
    assert order != [0, 1, 2] and abs(names.index("base") - names.index("tuned")) == 1
    measure, numbers, *rows, _, first, second, end = model_map_report(models).split("\n")
    assert measure == models.measure and numbers.split() == ["1", "2", "3", "model"] and end == ""
    assert [row.split()[-1] for row in rows] == names
    np.testing.assert_allclose([[float(number) for number in row.split()[1:-1]] for row in rows], expected)
    for a, b, verdict in (("base", "other", "unrelated"), ("base", "tuned", "related")):
        one, two = sorted(names.index(name) + 1 for name in (a, b))
        assert f"{one}, {two}: {verdict}" in (first, second)

    distances, page_plane = model_map_section(models).figures
    tree, heat = distances.plotly["data"]
    np.testing.assert_allclose(np.array(heat["z"]), expected, rtol=1e-4)
    same(sorted({x for x in tree["x"] if x}), sorted(models.linkage[:, 2].tolist()))
    assert page_plane.plotly["layout"]["yaxis"]["scaleanchor"] == "x"  # lengths on the map are distances
    dots = [trace for trace in page_plane.plotly["data"] if trace["mode"] == "markers"]
    points = np.array([[trace["x"][0], trace["y"][0]] for trace in dots])
    between = np.linalg.norm(points[:, None] - points, axis=-1)
    np.testing.assert_allclose(between, expected, atol=1e-4)  # three points fit a plane
    assert [trace["name"].split()[-1] for trace in dots] == names


def test_models_of_one_name_have_a_column_each(three_models) -> None:
    models = ModelMap(("LlamaForCausalLM", "LlamaForCausalLM", "base"), FORMS, three_models.pairs)
    columns = model_map_section(models).figures[0].table
    titles = columns.pop("model")
    assert list(columns) == titles and len(titles) == 3
    np.testing.assert_allclose(list(columns.values()), models.distances[np.ix_(models.order, models.order)])
