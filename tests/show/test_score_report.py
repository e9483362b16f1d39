"""Scores as text: narrow terminals lose the least important columns, and a legend explains the columns shown."""

from __future__ import annotations

import polars as pl
import pytest

import attngeo
from attngeo.show.score_report import published_report, score_report
from attngeo.weights.scoring.published.scores import list_published


@pytest.fixture(scope="module")
def table(minilm) -> attngeo.ScoreTable:
    return attngeo.score(str(minilm))


def layers(table: attngeo.ScoreTable) -> pl.DataFrame:
    return table.frame.filter(pl.col("head").is_null())


def legend(text: str) -> list[str]:
    """Return the titles that the last paragraph explains."""
    return [line.partition(":")[0] for line in text.rpartition("\n\n")[2].splitlines()]


def test_a_narrow_terminal_sheds_columns(table):
    narrow = score_report(layers(table), table.summary(), width=60).splitlines()[1:8]
    assert max(map(len, narrow)) <= 60
    assert narrow[0].split()[:2] == ["layer", "symmetry"]
    assert "directionality" in narrow[0]
    assert "folded" in score_report(layers(table), table.summary()).splitlines()[1]


def test_the_legend_explains_the_columns_that_are_shown(table):
    scores = ["symmetry", "directionality"]
    assert legend(score_report(layers(table), table.summary())) == [*scores, "z", "p", "re-paired", "folded"]
    assert legend(score_report(layers(table), table.summary(), width=60)) == [*scores, "z", "p"]
    plain = layers(table).select(column for column in table.frame.columns if not column.endswith(("_z", "_p")))
    assert legend(score_report(plain, table.summary())) == [*scores, "re-paired", "folded"]


def test_the_legend_of_published_scores():
    scores = ["symmetry", "directionality"]
    assert legend(published_report(list_published(family="pythia"))) == [*scores, "layers", "caution"]
    assert legend(published_report(list_published(model="gpt2", caution=False))) == [*scores, "layers"]
    assert legend(published_report(list_published(model="gpt2", caution=False, layers=True))) == scores
