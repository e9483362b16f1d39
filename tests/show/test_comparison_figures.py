"""Figures of compared models: every head and every model stands where its labels say."""

from __future__ import annotations

import numpy as np

import attngeo
from attngeo.applications.compare.change import change_frame
from attngeo.applications.compare.comparison import ModelComparison
from attngeo.applications.compare.model_map import FORMS, ModelMap, Pair
from attngeo.applications.compare.origin.relation import Relation
from attngeo.show.comparison_figures import comparison_figure, model_map_figure


def test_maps_and_the_relation_are_those_of_the_comparison() -> None:
    comparison = attngeo.compare(*(attngeo.bundled(name) for name in ("encoder", "decoder")), draws=99)
    heads = comparison.changes.drop_nulls("head")
    maps = [ax for ax in comparison_figure(comparison).axes if ax.get_xlabel() == "head"]
    for ax, column in zip(maps, ("change", "symmetry_change"), strict=True):
        drawn = np.asarray(ax.images[0].get_array())  # [layers, heads]
        assert drawn.shape == (4, 4) and ax.images[0].origin == "lower"
        for layer, head, value in heads.select("layer", "head", column).rows():
            assert drawn[layer, head] == value
    (related,) = (ax for ax in comparison_figure(comparison).axes if ax.get_title(loc="left").startswith("related"))
    points = [line.get_ydata()[0] for line in related.lines if len(line.get_ydata()) == 1]
    assert points == [comparison.related.statistic, comparison.related.control]


def test_the_colours_of_models_that_do_not_differ_begin_at_no_change() -> None:
    """A change of the form has no sign, so its colours have none either; the symmetry rose or fell by 0."""
    encoder = attngeo.bundled("encoder")
    figure = comparison_figure(attngeo.compare(encoder, encoder, draws=99))
    maps = [ax.images[0].get_clim() for ax in figure.axes if ax.get_xlabel() == "head"]
    assert maps == [(0, 1), (-1, 1)]


def test_models_without_comparable_forms_are_described_in_words() -> None:
    related = Relation.none("wide and narrow have the widths 128 and 32: forms of different width have no cosine")
    comparison = ModelComparison("wide", "narrow", change_frame([]), related)
    drawn = "".join(text.get_text() for ax in comparison_figure(comparison).axes for text in ax.texts)
    assert all("".join(line.split()) in "".join(drawn.split()) for line in comparison.words())


def test_the_distances_of_models_are_drawn_in_the_order_of_their_names() -> None:
    pairs = (Pair(0, 1, 0.9), Pair(0, 2, 0.1), Pair(1, 2, 0.8))
    models = ModelMap(("base", "other", "tuned"), FORMS, pairs)
    matrix, _, plane, *_ = model_map_figure(models).axes
    names = [label.get_text().split()[-1] for label in matrix.get_yticklabels()]
    order = [models.names.index(name) for name in names]
    assert order != [0, 1, 2]
    np.testing.assert_array_equal(matrix.images[0].get_array(), models.distances[np.ix_(order, order)])
    points = np.concatenate([dots.get_offsets() for dots in plane.collections])
    np.testing.assert_allclose(points, models.coordinates[order])
    between = np.linalg.norm(points[:, None] - points, axis=-1)
    np.testing.assert_allclose(between, models.distances[np.ix_(order, order)], atol=1e-6)  # three points fit a plane
