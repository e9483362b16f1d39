"""Results are sorted by model; what belongs to different models is refused."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import attngeo
from attngeo.errors import AttngeoError, InputError, SourceError
from attngeo.io.names import distinct_names, short_name
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
    results = sorted_results([organised, RECORDS, organised.expand(), table])
    [model] = results.models
    assert model.name == "bundled/encoder"
    assert model.scores == table and model.organization is organised and model.training == RECORDS


def test_references_and_tables_name_the_models():
    results = sorted_results([ENCODER, attngeo.score(DECODER), organization("bundled/decoder")])
    assert [model.name for model in results.models] == ["bundled/decoder", "bundled/encoder"] or [
        model.name for model in results.models
    ] == ["bundled/encoder", "bundled/decoder"]
    by_name = {model.name: model for model in results.models}
    assert by_name["bundled/encoder"].ref == ENCODER and by_name["bundled/encoder"].organization is None
    assert by_name["bundled/decoder"].organization is not None and by_name["bundled/decoder"].ref is None


def test_a_table_of_two_models_is_split():
    both = attngeo.score(ENCODER) + attngeo.score(DECODER)
    assert [model.name for model in sorted_results([both]).models] == ["bundled/encoder", "bundled/decoder"]


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
    [model] = sorted_results([Path("elsewhere/run/model"), tables[1]]).models  # of one name, and there is no other
    assert (model.ref, model.scores) == (Path("elsewhere/run/model"), tables[1])
    models = sorted_results([Path("elsewhere/run/model"), *tables]).models
    assert [model.scores for model in models] == [None, *tables]


def test_two_models_of_one_class_in_memory_are_no_repetition():
    torch = pytest.importorskip("torch")
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert [model.ref for model in sorted_results([first, second]).models] == [first, second]
    with pytest.raises(InputError, match="Linear: given twice, expected different models"):
        sorted_results([first, first])


def test_a_result_that_several_models_may_have_made_is_refused(runs):
    message = "organisation of run/model: may be of several models: …/x/run/model, …/y/run/model"
    with pytest.raises(InputError, match=message):
        sorted_results([*runs, organization("run/model")])


def test_each_model_has_its_own_rows_and_rotary_pairs():
    row = {"stack": "decoder", "layer": 0, "cross": False}
    pair = {"stack": "decoder", "layer": 0, "head": 0, "pair": 0}
    tables = [ScoreTable.of([row | {"model": name}], (), [pair | {"model": name}]) for name in ("org/a", "org/b")]
    for model, own in zip(sorted_results([tables[0] + tables[1]]).models, tables, strict=True):
        assert model.scores is not None and model.scores.frame.equals(own.frame)
        assert model.scores.frequencies.equals(own.frequencies)


def test_each_verdict_of_a_page_stands_beside_its_model():
    page = page_of(sorted_results([attngeo.score(ENCODER), attngeo.score(DECODER)]))
    (encoder, of_encoder), (decoder, of_decoder) = ((one.name, one.sentence) for one in page.verdicts)
    assert (encoder, decoder) == ("bundled/encoder", "bundled/decoder")
    assert "clearly symmetric" in of_encoder and "not distinguishable from chance" in of_decoder
    (section,) = (section for section in page.sections if section.id == "scores")
    frame = attngeo.score(ENCODER).frame  # the decoder has the same shapes
    nulls = [next(iter(of_stack(frame).values()))["symmetry"] for of_stack in (layer_nulls, head_nulls)]
    levels = [float(f"{null.std:.5g}") for null in nulls]  # a page has five digits
    table = section.figures[0].table
    chance = {(head is not None, std) for head, std in zip(table["head"], table["chance_std"], strict=True)}
    assert levels[0] != levels[1] and chance == {(False, levels[0]), (True, levels[1])}  # of layers, and of heads
    (plane,) = (section for section in page.sections if section.id == "plane")
    trusted = list_published(caution=False)  # figures that are known to be wrong are not drawn
    assert sum(plane.figures[0].table["published"]) == trusted.height < list_published().height
    assert any("In bundled/encoder, layers lie between 0.35 and 0.63" in doubt for doubt in page.doubts)


@pytest.mark.parametrize(
    "given, message",
    [
        (lambda: [attngeo.score(ENCODER), organization("bundled/decoder")], "results of different models"),
        (lambda: [organization(), organization("other/model")], "results of different models"),
        (lambda: [organization(), organization()], "two results of one kind"),
        (lambda: [attngeo.score(ENCODER), attngeo.score(ENCODER)], "two score tables"),
        (lambda: [organization(), organization(seed=1).expand()], "other trees"),
        (
            lambda: [ENCODER, DECODER, RECORDS],
            "training records without a name: may be of several models: bundled/encoder, bundled/decoder",
        ),
        (lambda: [ENCODER, ENCODER], "given twice"),
        (lambda: [ENCODER, f"{ENCODER}/."], "given twice"),
        (lambda: [attngeo.score(ENCODER, layers=[0]), organization()], "the head L1H0, which the scores lack"),
        (lambda: [3.5], "cannot use float"),
        (lambda: [], "nothing was given"),
    ],
)
def test_what_does_not_belong_together_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        sorted_results(given())


def test_a_result_of_a_fourth_model_names_the_three_others(tmp_path):
    copy = shutil.copytree(ENCODER, tmp_path / "third" / "model")
    others = r"the other results are of bundled/encoder, bundled/decoder and third/model;"
    with pytest.raises(InputError, match=others):
        sorted_results([ENCODER, DECODER, copy, organization("other/model")])


def test_names_are_compared_by_their_last_two_parts():
    assert short_name("/a/b/model/") == short_name(Path("b/model")) == "b/model"
    assert short_name("") == ""


def test_longer_names_tell_models_apart():
    assert distinct_names(["/a/b/model", "b/model", "/a/c/model"]) == ["…/a/b/model", "b/model", "c/model"]
    assert [short_name(name) for name in ("…/a/b/model", "c/model")] == ["…/a/b/model", "c/model"]


def test_saved_results_are_recognised(tmp_path):
    organised, table = organization(), attngeo.score(ENCODER)
    organised.save(tmp_path / "organization.npz")
    organised.expand().save(tmp_path / "expansion.npz")
    organised.tensor.save(tmp_path / "tensor.npz")
    organised.expand().compare(permuted=False).save(tmp_path / "comparison.json")
    table.save(tmp_path / "scores.parquet")
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


@pytest.mark.parametrize("name", ["table.csv", "config.json", "notes.txt"])
def test_a_file_that_is_neither_weights_nor_a_result_is_refused(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(SourceError, match=rf"{name}: neither weights nor a saved result; .*\.safetensors.*\.parquet"):
        load_given(str(tmp_path / name))


def test_files_without_a_result_are_named(tmp_path):
    organised = organization()
    organised.trees[0].save(tmp_path / "tree.npz")
    with pytest.raises(AttngeoError, match=r"tree\.npz: holds a saved tree, expected a result that a report shows"):
        load_given(str(tmp_path / "tree.npz"))
    data = (tmp_path / "tree.npz").read_bytes()
    for content in (b"", data[: len(data) // 2]):
        (tmp_path / "cut.npz").write_bytes(content)
        with pytest.raises(AttngeoError, match=r"cut\.npz: is incomplete, damaged or not a file of attngeo"):
            load_given(str(tmp_path / "cut.npz"))
    (tmp_path / "run.jsonl").write_bytes(b"")
    with pytest.raises(AttngeoError, match=r"run\.jsonl: holds no records"):
        load_given(str(tmp_path / "run.jsonl"))


def test_files_without_permission_are_not_called_damaged(tmp_path, monkeypatch):
    """The system is asked in two ways, which are imitated here: nobody may forbid root to read a file."""
    organization().trees[0].save(tmp_path / "tree.npz")
    attngeo.score(ENCODER).save(tmp_path / "scores.parquet")

    def denied(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(Path, "read_bytes", denied)
    for name in ("tree.npz", "scores.parquet"):
        with pytest.raises(AttngeoError, match=rf"{name}: cannot be read \(Permission denied\)$"):
            load_given(str(tmp_path / name))


def test_nothing_is_written_where_something_is_wrong(tmp_path):
    path = tmp_path / "report.html"
    for name, value in {"layers": [0], "stack": "encoder"}.items():
        with pytest.raises(InputError, match=f"{name}: chooses what is computed from a model, but only results were"):
            attngeo.report(attngeo.score(ENCODER), path, **{name: value})
    with pytest.raises(InputError, match="seed is -1, expected a whole number from 0 on"):
        attngeo.report(ENCODER, path, seed=-1)
    with pytest.raises(InputError, match="no model to run"):
        attngeo.report(organization(), path, inputs="A text.")
    with pytest.raises(InputError, match="stage"):
        attngeo.report(ENCODER, path, stage="queries")
    with pytest.raises(AttngeoError, match="none of the layers asked for exist"):
        attngeo.report(ENCODER, path, inputs="The sea.", layers=[17])
    with pytest.raises(InputError, match="expected one; a report shows"):
        attngeo.report(ENCODER, path, inputs=["The sea.", "The land."])
    with pytest.raises(AttngeoError, match="does not exist"):
        attngeo.report(ENCODER, tmp_path / "missing" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_matrix_is_shown_as_one_head(tmp_path):
    array = planted((12, 10), seed=0)[0]
    text = attngeo.report(organize(array), tmp_path / "report.html").read_text("utf-8")
    assert '"heads":["L0H0"]' in text and '"shape":[12,10,1]' in text


def test_everything_that_can_be_given_is_shown(tmp_path):
    organised = organization()
    table = attngeo.score(ENCODER)
    comparison = attngeo.compare(ENCODER, DECODER)
    plan = attngeo.PrunePlan("bundled/encoder", "bert", "0", ("encoder",), 16, "hand", "query", ())
    invariance = replace(
        attngeo.softmax_invariance(organised.values, heads=[0, 1], bootstrap=40), name="bundled/encoder"
    )
    given = [table, organised, organised.expand(), invariance, RECORDS, plan, comparison]
    text = attngeo.report(given, tmp_path / "report.html").read_text("utf-8")
    for section in (
        "scores",
        "maps",
        "plane",
        "attention",
        "head-tree",
        "head-map",
        "sparsity",
        "invariance",
        "training",
    ):
        assert f'<section id="{section}"' in text, section
    assert '<section id="comparison"' in text and '<section id="pruning"' in text


def test_the_slow_parts_are_computed_on_request_only(tmp_path):
    pytest.importorskip("torch")
    options = {"inputs": "The sea was calm.", "layers": [0]}
    short = attngeo.report(ENCODER, tmp_path / "short.html", **options).read_text("utf-8")
    full = attngeo.report(ENCODER, tmp_path / "full.html", full=True, **options).read_text("utf-8")
    for text, computed in ((short, False), (full, True)):
        assert ('<section id="invariance"' in text) == computed
        assert ('"permuted: trees"' in text) == computed
        assert '"stage":"probabilities"' in text
