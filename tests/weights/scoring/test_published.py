"""The published scores, and the comparison of a model with them; checked against the CSV file read directly."""

from __future__ import annotations

import csv
import statistics
from importlib.resources import files

import polars as pl
import pytest

import attngeo
from attngeo.weights.scoring.published import (
    compare_with_published,
    list_published,
    modality_of,
    published,
)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    text = (files("attngeo.weights") / "data" / "published_scores.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def score_frame(
    model: str, stack: str, symmetry: list[float], directionality: list[float], cross: bool = False
) -> pl.DataFrame:
    """Return the columns of a score table that the comparison reads: the layers, then one head of layer 0."""
    n = len(symmetry)
    return pl.DataFrame(
        {
            "model": [model] * (n + 1),
            "stack": [stack] * (n + 1),
            "layer": [*range(n), 0],
            "head": [None] * n + [0],
            "symmetry": [*symmetry, 0.9],
            "directionality": [*directionality, 0.9],
            "cross": [cross] * (n + 1),
        }
    )


def test_all_rows_are_read_with_their_cautions(rows):
    frame = published()
    assert frame.height == len(rows) == 3893
    assert frame["hub_id"].n_unique() == 151
    assert frame["caution"].null_count() == sum(not row["caution"] for row in rows)
    assert frame.select(pl.col("symmetry", "directionality").is_between(-1, 1).all()).row(0) == (True, True)
    assert attngeo.published is published


def test_a_model_is_found_by_hub_id_or_short_name(rows):
    expected = [float(row["symmetry"]) for row in rows if row["hub_id"] == "google-bert/bert-base-uncased"]
    for name in ("google-bert/bert-base-uncased", "Google-BERT/BERT-base-uncased@main", "bert-base-uncased"):
        assert published(name)["symmetry"].to_list() == expected


def test_published_scores_are_added_to_layer_rows_only(rows):
    frame = compare_with_published(score_frame("facebook/bart-base", "decoder", [0.1] * 6, [-0.2] * 6))
    expected = [
        (float(row["symmetry"]), float(row["directionality"]))
        for row in rows
        if row["hub_id"] == "facebook/bart-base" and row["stack"] == "decoder"
    ]
    layers = frame.filter(pl.col("head").is_null())
    assert layers.select("symmetry_published", "directionality_published").rows() == expected
    assert frame.filter(pl.col("head").is_not_null())["symmetry_published"].to_list() == [None]
    assert frame["population"].null_count() == frame.height  # trusted rows make percentiles unnecessary


def test_a_local_folder_is_compared_only_with_a_named_model():
    folder = score_frame("models/gpt2", "decoder", [0.1] * 12, [-0.2] * 12)
    assert compare_with_published(folder)["published_model"].null_count() == 13
    assert compare_with_published(folder, "gpt2")["published_model"][0] == "openai-community/gpt2"
    with pytest.raises(attngeo.AttngeoError, match="no-such-model"):
        compare_with_published(folder, "no-such-model")


def test_percentiles_are_among_models_without_caution_of_the_same_stack_and_modality(rows):
    frame = compare_with_published(
        score_frame("mine", "decoder", [0.1, 0.2, 0.6], [-0.5, -0.4, 0.0]), modality="language"
    )
    by_model: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if (row["modality"], row["stack"], row["caution"]) == ("language", "decoder", ""):
            by_model.setdefault(row["hub_id"], []).append(row)
    for score, value in (("symmetry", 0.2), ("directionality", -0.4)):
        medians = [statistics.median(float(row[score]) for row in model) for model in by_model.values()]
        expected = 100 * sum(median < value for median in medians) / len(medians)
        assert frame[f"model_{score}_percentile"][0] == pytest.approx(expected)
    assert frame["population"][0] == f"{len(by_model)} caution-free language decoder models"


def test_rows_with_a_caution_are_shown_together_with_a_percentile():
    frame = compare_with_published(
        score_frame("EleutherAI/pythia-14m", "decoder", [0.1] * 6, [-0.2] * 6), modality="language"
    )
    assert frame["caution"][0] == "fused weight cut in blocks though interleaved per head"
    assert frame["symmetry_published"].null_count() == 1  # the head row
    assert frame["model_symmetry_percentile"][0] is not None


def test_a_vision_stack_is_compared_with_vision_models():
    frame = compare_with_published(score_frame("mine", "vision", [0.1], [0.0]))
    kind = published().filter(pl.col("modality") == "vision", pl.col("caution").is_null())
    assert frame["population"][0] == f"{kind['hub_id'].n_unique()} caution-free vision models"


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"vocab_size": 30522, "hidden_size": 384}, "language"),
        ({"vocab_size": 32, "conv_dim": [512]}, "audio"),
        ({"vocab_size": 49408, "image_size": 224}, "vision"),
        (None, None),
    ],
)
def test_the_modality_follows_from_the_config(config, kind):
    assert modality_of(config) == kind


def test_cross_attention_and_a_part_of_a_model_have_no_percentile():
    cross = compare_with_published(score_frame("mine", "cross", [0.1], [0.0], cross=True), modality="language")
    part = compare_with_published(score_frame("mine", "decoder", [0.1], [0.0]), modality="language", whole=False)
    assert cross["population"].to_list() == part["population"].to_list() == [None, None]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attngeo.published("somebody/gpt2"), "somebody/gpt2: not among the published models"),
        (lambda: list_published(stack="encodr"), r"^stack 'encodr': expected one of decoder, encoder$"),
        (lambda: compare_with_published(pl.concat([score_frame(m, "encoder", [0.1], [0.0]) for m in "ab"])),
         "one model at a time .* got 2 models"),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_up_is_one_line(call, message):
    with pytest.raises(attngeo.AttngeoError, match=message):
        call()
