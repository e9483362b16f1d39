"""Scores as text: the columns of the default table, bars and colours, narrow terminals, verdicts, legends."""

from __future__ import annotations

import re
from itertools import pairwise

import polars as pl
import pytest

import attngeo
from attngeo.show.scores import published_report, score_report
from attngeo.show.tables import WIDTH, Terminal
from attngeo.weights.scoring.published import compare_with_published, list_published
from attngeo.weights.scoring.score_table import COLUMNS, ScoreTable
from attngeo.weights.scoring.verdict import verdicts

SCORES = ["symmetry", "directionality"]


@pytest.fixture(scope="module")
def table(minilm) -> ScoreTable:
    return attngeo.score(str(minilm))


@pytest.fixture(scope="module")
def wide(table) -> ScoreTable:
    """A table in which every column has values, some of them as long as they get."""
    count = len(table)
    fill = {
        name: pl.Series([-12345.678 if name.endswith("_z") else -0.987654] * count)
        for name, kind in COLUMNS.items()
        if kind == "Float64" and table.frame[name].null_count() == count
    }
    return ScoreTable(table.frame.with_columns(**fill, rotary=pl.lit("yes")))


def layers(table: ScoreTable) -> pl.DataFrame:
    return table.frame.filter(pl.col("head").is_null())


def report(table: ScoreTable, rows: pl.DataFrame, terminal: Terminal | None = None, every_column: bool = False) -> str:
    return score_report(rows, table.summary(), verdicts(table.frame), terminal or Terminal(), every_column)


def titles(text: str) -> list[str]:
    return text.splitlines()[1].split()


def legend(text: str) -> list[str]:
    """Return the titles that the last paragraph explains."""
    return [line.partition(":")[0] for line in text.rpartition("\n\n")[2].splitlines()]


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[\d*m", "", text)


@pytest.mark.parametrize("style", [{}, {"bars": True}, {"bars": True, "colours": True}], ids=str)
@pytest.mark.parametrize("width", [60, 80, WIDTH])
def test_no_line_is_wider_than_the_terminal(wide, width, style):
    lines = without_colours(report(wide, wide.frame, Terminal(width, **style))).splitlines()
    table_lines = lines[1 : lines.index("")]
    assert max(map(len, table_lines)) <= width
    if width == WIDTH:
        assert max(map(len, lines[1:])) <= width


def test_a_narrow_terminal_sheds_columns(wide):
    pairs = ["symmetry", "z", "symmetry_rope", "z", "directionality", "z", "dominance", "z"]
    assert titles(report(wide, wide.frame)) == ["layer", "head", *pairs]
    assert titles(report(wide, layers(wide))) == ["layer", *pairs]
    assert titles(report(wide, layers(wide), Terminal(70))) == ["layer", *pairs[:5]]
    assert titles(report(wide, layers(wide), Terminal(50))) == ["layer", "symmetry", "symmetry_rope", "directionality"]


def test_bars_are_as_long_as_the_scores(table):
    lines = report(table, layers(table), Terminal(bars=True)).splitlines()[2:8]
    bars = [re.findall("[▏▎▍▌▋▊▉█]+", line)[0] for line in lines]
    for text, symmetry in zip(bars, layers(table)["symmetry"], strict=True):
        assert len(text) == -(-symmetry * 6 // 1)  # a full bar has 6 characters
    plain = report(table, layers(table)).splitlines()[2:8]
    assert [re.sub("[▏▎▍▌▋▊▉█]+", "", line).split() for line in lines] == [line.split() for line in plain]


def test_colours_tell_sign_and_chance_and_change_nothing_else(table):
    coloured = report(table, table.frame, Terminal(colours=True))
    assert without_colours(coloured) == report(table, table.frame)
    for row in table.frame.iter_rows(named=True):
        value, z = row["symmetry"], row["symmetry_z"]
        code = 2 if abs(z) < 2 else 36 if value > 0 else 33
        assert re.search(rf"\x1b\[{code}m *{value:.3f}\x1b\[0m  +{z:.1f} ", coloured), row


def test_every_column_is_printed_on_request(wide, table):
    text = report(wide, wide.frame, every_column=True)
    assert titles(text) == [name for name in COLUMNS if name not in ("model", "stack")]
    text = report(table, table.frame, every_column=True)
    empty = [name for name in COLUMNS if table.frame[name].null_count() == len(table)]
    assert all(name in text for name in COLUMNS if name not in ("model", "stack"))
    assert not set(empty) & set(titles(text))


def test_notes_verdict_and_medians_follow_the_table(table):
    _, below, _ = report(table, layers(table)).split("\n\n")
    verdict, head, of_layers, of_heads = below.splitlines()
    assert verdict == verdicts(table.frame)[0].sentence
    assert head.split() == ["median", "[quartiles]", *SCORES, "dominance"]
    assert of_layers.startswith("6 layers ") and of_heads.startswith("72 heads ")
    assert f"{layers(table)['symmetry'].median():.3f} [" in of_layers
    normalised = report(table, layers(table).with_columns(qk_norm=True))
    assert "\nQueries and keys are normalised before their product: the form is only part of the score\n" in normalised


def test_the_legend_explains_the_columns_that_are_shown(table, wide):
    assert legend(report(wide, layers(wide))) == ["symmetry", "symmetry_rope", "directionality", "dominance", "z"]
    without_z = table.frame.select(name for name in COLUMNS if not name.startswith("dominance"))
    assert legend(report(table, without_z)) == [*SCORES, "z"]
    plain = without_z.select(name for name in without_z.columns if not name.endswith("_z"))
    assert legend(report(table, plain)) == SCORES
    explained = " ".join(legend(report(wide, wide.frame, every_column=True)))
    for name in titles(report(wide, wide.frame, every_column=True))[2:]:
        assert any(
            word == name or (word[0] == "…" and name.endswith(word[1:])) for word in re.split("[, ]+", explained)
        )


def test_the_legend_of_published_scores():
    *titles, caution = legend(published_report(list_published(family="pythia")))
    assert titles == [*SCORES, "layers", "size", "note"]
    assert caution == "[1] fused weight cut in blocks though interleaved per head"
    assert legend(published_report(list_published(model="gpt2", caution=False))) == [*SCORES, "layers", "size"]
    assert legend(published_report(list_published(model="gpt2", caution=False, layers=True))) == [*SCORES, "size"]


@pytest.mark.parametrize("layers", [False, True])
def test_published_scores_are_listed_within_100_characters(layers):
    frame = list_published(layers=layers)
    lines = published_report(frame).splitlines()
    assert max(map(len, lines)) <= 100
    table = lines[1 : lines.index("")]
    families = frame.select("modality", "family").rows()
    assert len(table) == frame.height + 1 + sum(a != b for a, b in pairwise(families))  # a line above each family
    row = next(line for line in table if line.startswith("facebook/musicgen-small "))
    assert row.split()[-2:] == ["589M", "[1]"]
    assert "[1] cross-attention, not self-attention" in lines


def test_each_score_is_printed_with_its_own_percentile(table):
    compared = compare_with_published(table.frame, modality="language")
    symmetry, directionality = (round(compared[f"model_{score}_percentile"][0]) for score in SCORES)
    line = next(line for line in report(table, compared).splitlines() if line.startswith("percentile of the median"))
    assert symmetry != directionality
    assert line.endswith(f" language encoder models: symmetry {symmetry}, directionality {directionality}")
