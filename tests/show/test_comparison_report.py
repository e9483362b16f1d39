"""Comparisons as text: the layers and heads that changed most come first, and models stand beside their distances."""

from __future__ import annotations

import numpy as np
import pytest

import attngeo
from attngeo.applications.compare.model_map import FORMS, ModelMap, Pair
from attngeo.show.comparison_report import comparison_report, model_map_report


@pytest.fixture(scope="module")
def comparison():
    a, b = (attngeo.bundled(name) for name in ("encoder", "decoder"))
    return attngeo.compare(a, b, draws=99)


def table(text: str, title: str) -> list[list[str]]:
    """Return the rows of the table below a line that begins with `title`."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(title))
    end = next(at for at, line in enumerate(lines[start:], start) if not line)
    return [line.split() for line in lines[start + 1 : end]]


def test_the_heads_that_changed_most_are_listed(comparison) -> None:
    text = comparison_report(comparison, heads=3)
    titles, *rows = table(text, "heads, by change (3 of 16)")
    most = comparison.changes.drop_nulls("head").sort("change", descending=True).select("layer", "head", "change")
    assert [row[:3] for row in rows] == [[str(layer), str(head), f"{by:.3g}"] for layer, head, by in most.rows()[:3]]
    assert titles[:5] == ["layer", "head", "change", "cosine", "match"]
    assert len(table(comparison_report(comparison, heads=None), "heads, by change (16 of 16)")) == 17
    changes = [float(row[1]) for row in table(text, "layers, by change")[1:]]
    assert len(changes) == 4 and changes == sorted(changes, reverse=True)


def test_each_row_of_a_distance_matrix_belongs_to_its_model() -> None:
    pairs = (Pair(0, 1, 0.9, 0.5, "unrelated"), Pair(0, 2, 0.1, 0.001, "related"), Pair(1, 2, 0.8))
    models = ModelMap(("base", "other", "tuned"), FORMS, pairs)
    measure, numbers, *rows, _, first, second, end = model_map_report(models).split("\n")
    assert measure == FORMS and numbers.split() == ["1", "2", "3", "model"] and end == ""
    order = [row.split()[-1] for row in rows]
    assert sorted(order) == ["base", "other", "tuned"] and abs(order.index("base") - order.index("tuned")) == 1
    found = np.array([[float(number) for number in row.split()[1:-1]] for row in rows])
    places = [models.names.index(name) for name in order]
    np.testing.assert_allclose(found, models.distances[np.ix_(places, places)])
    for a, b, verdict in (("base", "other", "unrelated"), ("base", "tuned", "related")):
        one, two = sorted(order.index(name) + 1 for name in (a, b))
        assert f"{one}, {two}: {verdict}" in (first, second)
