"""Results are sorted by model; what belongs to different models is refused; saved results are recognised."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import attngeo
from attngeo.errors import AttngeoError, InputError, SourceError
from attngeo.organization import NetworkTensor, organize, planted
from attngeo.reporting.assemble import page_of
from attngeo.reporting.results import load_given, sorted_results
from attngeo.weights.scoring import head_nulls, layer_nulls, list_published
from attngeo.weights.scoring.score_table import ScoreTable

ENCODER, DECODER = (attngeo.bundled(name) for name in ("encoder", "decoder"))
RECORDS = [{"step": 0, "symmetry": [0.1]}, {"step": 10, "symmetry": [0.2]}]


def organization(name: str = "bundled/encoder", seed: int = 0) -> attngeo.Organization:
    """An organised tensor with the heads of the bundled models."""
    heads = tuple(f"L{layer}H{head}" for layer in range(4) for head in range(4))
    array = planted((8, 9, 16), seed=seed)[0]
    return organize(NetworkTensor(array.astype(np.float32), heads=heads, name=name))


def test_results_of_one_model_come_together():
    table, organised = attngeo.score(ENCODER), organization()
    [model] = sorted_results([organised, RECORDS, organised.expand(), table]).models
    assert model.name == "bundled/encoder"
    assert model.scores == table and model.organization is organised and model.training == RECORDS


def test_references_and_tables_name_the_models():
    results = sorted_results([ENCODER, attngeo.score(DECODER), organization("bundled/decoder")])
    found = {model.name: (model.ref, model.organization is None) for model in results.models}
    assert found == {"bundled/encoder": (ENCODER, True), "bundled/decoder": (None, False)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two models in folders whose paths end in the same two names."""
    folder = tmp_path_factory.mktemp("runs")
    return [shutil.copytree(ref, folder / run / "run" / "model") for ref, run in ((ENCODER, "x"), (DECODER, "y"))]


@pytest.mark.parametrize("given", [list, lambda refs: [attngeo.score(ref) for ref in refs]], ids=["models", "tables"])
def test_models_of_the_same_short_name_are_told_apart(tmp_path, runs, given):
    text = attngeo.report(given(runs), tmp_path / "report.html").read_text("utf-8")
    assert "<title>Attention geometry of …/x/run/model and …/y/run/model</title>" in text


def test_a_table_joins_the_model_of_its_path(runs):
    tables = [attngeo.score(ref) for ref in runs]
    for given in ([tables[1], *runs], [*runs, tables[1]]):
        by_ref = {model.ref: model.scores for model in sorted_results(given).models}
        assert by_ref == {runs[0]: None, runs[1]: tables[1]}
    elsewhere = Path("elsewhere/run/model")
    [model] = sorted_results([elsewhere, tables[1]]).models  # of one name, and there is no other
    assert (model.ref, model.scores) == (elsewhere, tables[1])
    assert [model.scores for model in sorted_results([elsewhere, *tables]).models] == [None, *tables]


def test_each_model_has_its_own_rows_and_rotary_pairs():
    row = {"stack": "decoder", "layer": 0, "cross": False}
    pair = {"stack": "decoder", "layer": 0, "head": 0, "pair": 0}
    tables = [ScoreTable.of([row | {"model": name}], (), [pair | {"model": name}]) for name in ("org/a", "org/b")]
    for model, own in zip(sorted_results([tables[0] + tables[1]]).models, tables, strict=True):
        assert model.scores is not None and model.scores.frame.equals(own.frame)
        assert model.scores.frequencies.equals(own.frequencies)


def test_each_verdict_of_a_page_stands_beside_its_model():
    page = page_of(sorted_results([attngeo.score(ENCODER), attngeo.score(DECODER)]))
    (encoder, of_encoder), (decoder, of_decoder) = page.verdicts
    assert (encoder, decoder) == ("bundled/encoder", "bundled/decoder")
    assert "clearly symmetric" in of_encoder and "not distinguishable from chance" in of_decoder
    sections = {section.id: section for section in page.sections}
    frame = attngeo.score(ENCODER).frame  # the decoder has the same shapes
    nulls = [next(iter(of_stack(frame).values()))["symmetry"] for of_stack in (layer_nulls, head_nulls)]
    levels = [float(f"{null.std:.5g}") for null in nulls]  # a page has five digits
    table = sections["scores"].figures[0].table
    chance = {(head is not None, std) for head, std in zip(table["head"], table["chance_std"], strict=True)}
    assert levels[0] != levels[1] and chance == {(False, levels[0]), (True, levels[1])}  # of layers, and of heads
    trusted = list_published(caution=False)  # figures that are known to be wrong are not drawn
    assert sum(sections["plane"].figures[0].table["published"]) == trusted.height < list_published().height
    assert any("In bundled/encoder, layers lie between 0.35 and 0.63" in doubt for doubt in page.doubts)


@pytest.mark.parametrize(
    "given, message",
    [
        (
            lambda runs: [attngeo.score(ENCODER), organization("bundled/decoder")],
            "organisation of bundled/decoder: the other results are of bundled/encoder;",
        ),
        (lambda runs: [organization(), organization()], "two results of one kind"),
        (lambda runs: [attngeo.score(ENCODER), attngeo.score(ENCODER)], "two score tables"),
        (lambda runs: [organization(), organization(seed=1).expand()], "other trees"),
        (
            lambda runs: [ENCODER, DECODER, RECORDS],
            "training records of no model: the other results are of bundled/encoder and bundled/decoder;",
        ),
        (lambda runs: [*runs, organization("run/model")], "are of …/x/run/model and …/y/run/model; expected"),
        (lambda runs: [ENCODER, f"{ENCODER}/."], "given twice"),
        (lambda runs: [], "nothing was given"),
    ],
)
def test_what_does_not_belong_together_is_refused(given, message, runs):
    with pytest.raises(InputError, match=message):
        sorted_results(given(runs))


# ---- files


def test_saved_results_are_recognised(tmp_path):
    organised = organization()
    organised.save(tmp_path / "organization.npz")
    organised.expand().save(tmp_path / "expansion.npz")
    organised.tensor.save(tmp_path / "tensor.npz")
    organised.expand().compare(permuted=False).save(tmp_path / "comparison.json")
    attngeo.score(ENCODER).save(tmp_path / "scores.parquet")
    attngeo.compare(ENCODER, DECODER).save(tmp_path / "compared.parquet")
    (tmp_path / "run.jsonl").write_text('{"step": 0, "symmetry": [0.1]}\n')
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    kinds = {path.name: type(load_given(str(path))).__name__ for path in tmp_path.iterdir()}
    assert kinds == {
        "organization.npz": "Organization",
        "expansion.npz": "Expansion",
        "tensor.npz": "NetworkTensor",
        "comparison.json": "SparsityControls",
        "scores.parquet": "ScoreTable",
        "compared.parquet": "ModelComparison",
        "run.jsonl": "list",
        "model.safetensors.index.json": "str",
    }
    assert load_given("org/name") == "org/name"


def test_files_without_a_result_are_named(tmp_path):
    organization().trees[0].save(tmp_path / "tree.npz")
    data, damaged = (tmp_path / "tree.npz").read_bytes(), "is incomplete, damaged or not a file of attngeo"
    neither = r"neither weights nor a saved result; .*\.safetensors.*\.parquet"
    for name, content, message in (
        ("config.json", b"{}", neither),
        ("tree.npz", data, "holds a saved tree, expected a result that a report shows"),
        ("cut.npz", data[: len(data) // 2], damaged),
        ("cut.parquet", b"PAR1", "is damaged, or not a score table"),
        ("run.jsonl", b"", "holds no records"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises((InputError, SourceError), match=f"{name}: {message}"):
            load_given(str(tmp_path / name))


# ---- reports


@pytest.mark.parametrize(
    "given, options, message",
    [
        (lambda: attngeo.score(ENCODER), {"layers": [0]}, "layers: chooses what is computed"),
        (organization, {"inputs": "A text."}, "no model to run"),
        (lambda: ENCODER, {"stage": "queries"}, "stage"),
        (lambda: ENCODER, {"inputs": ["The sea.", "The land."]}, "expected one; a report shows"),
        (lambda: ENCODER, {"path": "missing/report.html"}, "does not exist"),
    ],
)
def test_nothing_is_written_where_something_is_wrong(given, options, message, tmp_path):
    options = options | {"path": tmp_path / options.get("path", "report.html")}
    with pytest.raises(AttngeoError, match=message):
        attngeo.report(given(), **options)
    assert list(tmp_path.iterdir()) == []


def test_a_matrix_is_shown_as_one_head(tmp_path):
    array = planted((12, 10), seed=0)[0]
    text = attngeo.report(organize(array), tmp_path / "report.html").read_text("utf-8")
    assert '"heads":["L0H0"]' in text and '"shape":[12,10,1]' in text


def test_everything_that_can_be_given_is_shown(tmp_path):
    organised = organization()
    plan = attngeo.PrunePlan("bundled/encoder", "bert", "0", ("encoder",), 16, "hand", "query", ())
    invariance = attngeo.softmax_invariance(organised.values, heads=[0, 1], bootstrap=40)
    given = [attngeo.score(ENCODER), organised, organised.expand(), RECORDS, plan, attngeo.compare(ENCODER, DECODER)]
    given.append(replace(invariance, name="bundled/encoder"))
    text = attngeo.report(given, tmp_path / "report.html").read_text("utf-8")
    shown = "scores maps plane attention head-tree head-map sparsity invariance training comparison pruning"
    for section in shown.split():
        assert f'<section id="{section}"' in text, section
