"""Scores as text: the columns of the default table, bars and colours, narrow terminals, verdicts, legends."""

from __future__ import annotations

import re
from itertools import pairwise

import polars as pl
import pytest

from attngeo.show.scores import published_report, score_report
from attngeo.show.tables import WIDTH, Terminal
from attngeo.weights.scoring.published import compare_with_published, list_published
from attngeo.weights.scoring.score_table import COLUMNS, ScoreTable
from attngeo.weights.scoring.verdict import verdicts

SCORES = ["symmetry", "directionality"]


@pytest.fixture(scope="module")
def wide(minilm_scores) -> ScoreTable:
    """A table in which every column has values, some of them as long as they get."""
    frame = minilm_scores.frame
    fill = {
        name: pl.Series([-12345.678 if name.endswith("_z") else -0.987654] * len(frame))
        for name, kind in COLUMNS.items()
        if kind == "Float64" and frame[name].null_count() == len(frame)
    }
    return ScoreTable(frame.with_columns(**fill, rotary=pl.lit("yes")))


def layers(table: ScoreTable) -> pl.DataFrame:
    return table.frame.filter(pl.col("head").is_null())


def titles(text: str) -> list[str]:
    return text.splitlines()[1].split()


def legend(text: str) -> list[str]:
    """Return the titles that the last paragraph explains."""
    return [line.partition(":")[0] for line in text.rpartition("\n\n")[2].splitlines()]


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[\d*m", "", text)


@pytest.mark.parametrize("width", [60, 80, WIDTH])
def test_no_line_is_wider_than_the_terminal(wide, width):
    for style in ({}, {"bars": True}, {"bars": True, "colours": True}):
        lines = without_colours(score_report(wide, wide.frame, Terminal(width, **style))).splitlines()
        assert max(map(len, lines[1 : lines.index("")])) <= width
        if width == WIDTH:
            assert max(map(len, lines[1:])) <= width


def test_a_narrow_terminal_sheds_columns(wide):
    pairs = ["symmetry", "z", "symmetry_rope", "z", "directionality", "z", "dominance", "z"]
    assert titles(score_report(wide, wide.frame)) == ["layer", "head", *pairs]
    assert titles(score_report(wide, layers(wide))) == ["layer", *pairs]
    assert titles(score_report(wide, layers(wide), Terminal(70))) == ["layer", *pairs[:5]]
    assert titles(score_report(wide, layers(wide), Terminal(50))) == ["layer", *pairs[0:6:2]]


def test_bars_are_as_long_as_the_scores(minilm_scores):
    rows = layers(minilm_scores)
    lines = score_report(minilm_scores, rows, Terminal(bars=True)).splitlines()[2:8]
    bars = [re.findall("[▏▎▍▌▋▊▉█]+", line)[0] for line in lines]
    for text, symmetry in zip(bars, rows["symmetry"], strict=True):
        assert len(text) == -(-symmetry * 6 // 1)  # a full bar has 6 characters
    plain = score_report(minilm_scores, rows).splitlines()[2:8]
    assert [re.sub("[▏▎▍▌▋▊▉█]+", "", line).split() for line in lines] == [line.split() for line in plain]


def test_colours_tell_sign_and_chance_and_change_nothing_else(minilm_scores):
    frame = minilm_scores.frame
    coloured = score_report(minilm_scores, frame, Terminal(colours=True))
    assert without_colours(coloured) == score_report(minilm_scores, frame)
    for value, z in frame.select("symmetry", "symmetry_z").rows():
        code = 2 if abs(z) < 2 else 36 if value > 0 else 33
        assert re.search(rf"\x1b\[{code}m *{value:.3f}\x1b\[0m  +{z:.1f} ", coloured), (value, z)


def test_every_column_is_printed_and_explained_on_request(wide, minilm_scores):
    text = score_report(wide, wide.frame, every_column=True)
    assert titles(text) == [name for name in COLUMNS if name not in ("model", "stack")]
    explained = re.split("[, ]+", " ".join(legend(text)))
    for name in titles(text)[2:]:
        assert any(word == name or (word[0] == "…" and name.endswith(word[1:])) for word in explained), name
    frame = minilm_scores.frame
    text = score_report(minilm_scores, frame, every_column=True)
    empty = [name for name in COLUMNS if frame[name].null_count() == len(frame)]
    assert all(name in text for name in COLUMNS if name not in ("model", "stack"))
    assert not set(empty) & set(titles(text))


def test_notes_verdict_and_medians_follow_the_table(minilm_scores):
    rows = layers(minilm_scores)
    _, below, _ = score_report(minilm_scores, rows).split("\n\n")
    verdict, head, of_layers, of_heads = below.splitlines()
    assert verdict == verdicts(minilm_scores.frame)[0].sentence
    assert head.split() == ["median", "[quartiles]", *SCORES, "dominance"]
    assert of_layers.startswith("6 layers ") and of_heads.startswith("72 heads ")
    assert f"{rows['symmetry'].median():.3f} [" in of_layers
    normalised = score_report(minilm_scores, rows.with_columns(qk_norm=True))
    assert "\nQueries and keys are normalised before their product: the form is only part of the score\n" in normalised


def test_the_legend_explains_the_columns_that_are_shown(minilm_scores, wide):
    assert legend(score_report(wide, layers(wide))) == ["symmetry", "symmetry_rope", "directionality", "dominance", "z"]
    without_z = minilm_scores.frame.select(name for name in COLUMNS if not name.startswith("dominance"))
    assert legend(score_report(minilm_scores, without_z)) == [*SCORES, "z"]
    plain = without_z.select(name for name in without_z.columns if not name.endswith("_z"))
    assert legend(score_report(minilm_scores, plain)) == SCORES


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
    explained = [title for title in legend(published_report(frame)) if title[0] != "["]
    assert explained == [*SCORES, *["layers"] * (not layers), "size", "note"]


def test_each_score_is_printed_with_its_own_percentile(minilm_scores):
    compared = compare_with_published(minilm_scores.frame, modality="language")
    symmetry, directionality = (round(compared[f"model_{score}_percentile"][0]) for score in SCORES)
    text = score_report(minilm_scores, compared)
    line = next(line for line in text.splitlines() if line.startswith("percentile of the median"))
    assert symmetry != directionality
    assert line.endswith(f" language encoder models: symmetry {symmetry}, directionality {directionality}")
