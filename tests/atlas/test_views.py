"""Figures of an atlas: the plane of two scores, and the course of a run; scores beside the published ones."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import attngeo
from attngeo.atlas.reference import read_list
from attngeo.atlas.views import beside_published, model_points, training_records
from attngeo.errors import InputError
from attngeo.weights.scoring.published import published
from tests.atlas.kills import ROOT
from tests.atlas.small_models import make_models, model_files
from tests.weights.made_checkpoints import write_files

BERT = "google/bert_uncased_L-2_H-128_A-2"


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> attngeo.Atlas:
    folder = tmp_path_factory.mktemp("views")
    models = make_models(folder / "models", 6)
    run = [write_files(folder / "run" / f"checkpoint-{step}", model_files("bert", step)) for step in (100, 20, 3)]
    other = write_files(folder / "run" / "best", model_files("bert", 7))
    atlas = attngeo.Atlas(folder / "atlas")
    assert atlas.add([*models, *run, other], workers=0, nulls=False).failed == 0
    return atlas


def on_hub(atlas: attngeo.Atlas, pattern: str, **columns: pl.Expr | str) -> pl.DataFrame:
    """Return the rows of the models whose names match, as those of models on the hub."""
    rows = atlas.frame().filter(pl.col("model").str.contains(pattern))
    named = {name: pl.lit(value) if isinstance(value, str) else value for name, value in columns.items()}
    return rows.with_columns(**({"revision": pl.lit("main")} | named))


def test_points_are_medians_over_self_attention_layers(atlas: attngeo.Atlas) -> None:
    frame = atlas.frame()
    points = model_points(frame, "symmetry", "dominance")
    assert set(points["group"]) == {"encoders", "decoders"}
    t5 = points.filter(pl.col("model").str.ends_with("t5"))
    assert sorted(t5["stack"]) == ["decoder", "encoder"]  # cross-attention has no symmetry
    layers = frame.filter(pl.col("model").str.ends_with("t5"), pl.col("head").is_null(), stack="encoder")
    assert t5.filter(stack="encoder").select("x", "layers").row(0) == (layers["symmetry"].median(), 2)
    with pytest.raises(InputError, match="nothing: not a column of scores, expected one of"):
        model_points(frame, "nothing", "symmetry")


def test_the_plane_has_a_panel_per_group_and_published_models_behind(atlas: attngeo.Atlas, tmp_path: Path) -> None:
    figure = atlas.plot()
    assert [ax.get_title("left") for ax in figure.axes] == ["encoders", "decoders"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0].startswith("published") and len(labels) == 1 + 10
    assert len(figure.axes[0].collections[0].get_offsets()) > 50  # published models
    other = atlas.plot("dominance", "symmetry")
    assert not any("published" in text.get_text() for text in other.legends[0].get_texts())
    empty = attngeo.Atlas(tmp_path / "atlas")
    empty.add([])
    with pytest.raises(InputError, match="has no scores to draw"):
        empty.plot()


def test_the_course_of_a_run_is_in_order_of_steps(atlas: attngeo.Atlas) -> None:
    run = str(atlas.path.parent / "run")
    records = training_records(atlas.frame(), run)
    assert [record["step"] for record in records] == [3, 20, 100]
    assert records[0]["layer"] == [0, 1] and records[0]["stack"] == ["encoder", "encoder"]
    titles = [ax.get_title("left") for ax in atlas.plot(revisions=run).axes]
    assert titles[:2] == ["encoder symmetry", "encoder directionality"]
    with pytest.raises(InputError, match="org/none: the atlas has 0 checkpoints with a step in their names, of none"):
        atlas.plot(revisions="org/none")
    with pytest.raises(InputError, match="the atlas has 1 checkpoints with a step in their names, of best, "):
        training_records(atlas.frame().filter(~pl.col("model").str.contains("-(20|3)$")), run)


def test_hub_revisions_are_checkpoints_of_a_run(atlas: attngeo.Atlas) -> None:
    step = pl.lit("step") + pl.col("model").str.extract(r"-(\d+)$")
    hub = on_hub(atlas, "checkpoint", revision=step, model="org/name")
    assert [record["step"] for record in training_records(hub, "org/name")] == [3, 20, 100]


def test_two_commits_of_a_revision_are_two_states(atlas: attngeo.Atlas) -> None:
    """The branch `main` of a model moved between two calls: nothing is a median over the layers of both."""
    hub = on_hub(atlas, "checkpoint-(3|20)$", commit=pl.col("model").str.extract(r"-(\d+)$"), model=BERT)
    states = {value: hub.filter(pl.col("head").is_null(), commit=value) for value in ("3", "20")}
    for medians in (model_points(hub, "symmetry", "dominance").rename({"x": "symmetry"}), beside_published(hub)):
        assert sorted(medians["commit"]) == ["20", "3"] and set(medians["layers"]) == {2}
        for value, own in states.items():
            assert medians.filter(commit=value)["symmetry"].item() == own["symmetry"].median()
    assert beside_published(hub, layers=True).height == 4
    steps = hub.with_columns(revision=pl.lit("step1"))
    other = hub.filter(commit="3").with_columns(revision=pl.lit("step2"))
    with pytest.raises(InputError, match="two checkpoints of step 1 have other scores"):
        training_records(pl.concat([steps, other]), BERT)


def test_scores_stand_beside_the_published_ones(atlas: attngeo.Atlas) -> None:
    local = atlas.frame().filter(pl.col("model").str.ends_with("000-bert"))  # which has no published scores
    named = on_hub(atlas, "000-bert$", model=BERT)
    layers = beside_published(pl.concat([named, local]), layers=True)
    expected = published(BERT)
    assert layers["symmetry_published"].to_list() == expected["symmetry"].to_list()
    assert layers["layer"].to_list() == [0, 1]
    [medians] = beside_published(named).to_dicts()
    assert (medians["layers"], medians["symmetry_published"]) == (2, expected["symmetry"].median())
    assert medians["symmetry_difference"] == pytest.approx(medians["symmetry"] - medians["symmetry_published"])
    assert beside_published(local).height == 0
    old = beside_published(on_hub(atlas, "001-gpt2$", model="gpt2"), layers=True)  # now openai-community/gpt2
    assert old["symmetry_published"].to_list() == published("gpt2")["symmetry"][:2].to_list()


def test_the_list_file_names_every_published_model() -> None:
    listed = read_list(ROOT / "docs" / "published_models.txt")
    assert len(listed) == len(set(listed)) == 151
    assert set(listed) == set(published()["hub_id"])
