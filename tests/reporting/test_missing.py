"""What a report computes: the options of the call reach every function that it asks."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("torch")

import attngeo
from attngeo.io.names import short_name
from attngeo.organization import NetworkTensor
from attngeo.reporting import missing
from attngeo.reporting.assemble import page_of
from attngeo.reporting.missing import Wanted, add_comparison, add_missing
from attngeo.reporting.results import ModelResults, Results

WANTED = Wanted(
    inputs="a text", stage="probabilities", stack="decoder", layers=[1, 2], target="t", truncate=True,
    sampling_rate=16_000, full=True, num_heads=4, unproven=True, seed=7, device="cpu",
)  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """The options of each call, by function; none of them does anything."""
    found: dict[str, list[dict[str, Any]]] = {}
    tensor = NetworkTensor(np.random.default_rng(0).random((6, 6, 4)))
    loaded = SimpleNamespace(model="model", name="made", tokenizer=None, image_processor=None, feature_extractor=None)
    frame = pl.DataFrame({"model": ["made"], "symmetry_rope": [0.1]})
    results = {
        "score": SimpleNamespace(frame=frame),
        "extreme_heads": [("decoder", 1, 0)],
        "head_forms": ("form",),
        "offset_curves": "curves",
        "load_model": loaded,
        "capture": tensor,
        "softmax_invariance": "invariance",
        "compare": "comparison",
        "tell_apart": (),
    }
    for name, result in results.items():

        def note(*_: Any, name: str = name, result: Any = result, **options: Any) -> Any:
            found.setdefault(name, []).append(options)
            return result

        monkeypatch.setattr(missing, name, note)
    return found


def only(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names}


def test_options_reach_every_function(calls: dict[str, list[dict[str, Any]]]) -> None:
    results = Results([ModelResults("made", "folder")])
    add_missing(results, WANTED)
    add_comparison(results, "other", WANTED)
    heads = {"num_heads": 4, "unproven": True}
    for options in calls["score"]:  # of the model, and of the one that it is compared with
        assert options == heads | {"stack": "decoder", "layers": [1, 2]}
    assert len(calls["score"]) == 2
    assert calls["head_forms"] == [heads | {"model": "made"}]
    assert calls["offset_curves"] == [heads | {"stack": "decoder", "layers": [1, 2]}]
    run = {"stack": "decoder", "layers": [1, 2], "target": "t", "truncate": True, "sampling_rate": 16_000}
    assert [options["stage"] for options in calls["capture"]] == ["logits", "probabilities"]
    assert all(only(options, *run) == run for options in calls["capture"])
    assert only(calls["softmax_invariance"][0], "seed", "device") == {"seed": 7, "device": "cpu"}
    compared = heads | {"inputs": "a text", "seed": 7, "truncate": True, "stack": "decoder"}
    assert only(calls["compare"][0], *compared) == compared
    (model, _), (comparison,) = results.models, results.comparisons
    assert (model.curves, model.forms, model.invariance, comparison) == (
        "curves",
        ("form",),
        "invariance",
        "comparison",
    )
    assert model.organization is not None and model.sparsity is not None and "permuted: trees" in model.sparsity


def test_the_control_of_the_sparsity_uses_the_seed(calls: dict[str, list[dict[str, Any]]]) -> None:
    found = []
    for seed in (7, 7, 8):
        results = Results([ModelResults("made", "folder")])
        add_missing(results, Wanted(inputs="a text", seed=seed))
        assert results.models[0].sparsity is not None
        found.append(results.models[0].sparsity["shuffled axes"].sparsity.l1)
    assert found[0] == found[1] != found[2]
    assert [options["stage"] for options in calls["capture"]] == ["probabilities"] * 3  # the logits are not needed


def test_a_model_of_the_same_short_name_is_shown_too(tmp_path: Path) -> None:
    """Two runs in folders of one name; a report names both, by as much of their paths as tells them apart."""
    refs = [tmp_path / run / "run" / "checkpoint" for run in ("x", "y")]
    for ref, name in zip(refs, ("decoder", "encoder"), strict=True):
        shutil.copytree(attngeo.bundled(name), ref)
    results = Results([ModelResults(short_name(refs[0]), refs[0])])
    add_missing(results, Wanted())
    add_comparison(results, refs[1], Wanted())
    names = ["…/x/run/checkpoint", "…/y/run/checkpoint"]
    assert [model.name for model in results.models] == names
    for model, ref in zip(results.models, refs, strict=True):
        assert model.scores is not None and model.scores.frame["symmetry"].equals(attngeo.score(ref).frame["symmetry"])
        assert model.scores.frame["model"].unique().to_list() == [model.name] == list(model.scores.model_types)
    assert {form.model for form in results.models[0].forms} == {names[0]}
    page = page_of(results)
    assert page.title.endswith(" and ".join(names)) and len(page.verdicts) == 2
    assert [verdict.name.partition(",")[0] for verdict in page.verdicts] == names
    (scores,) = (section for section in page.sections if section.id == "scores")
    assert all(name in scores.figures[0].label for name in names)
    assert page.sections[-1].title == f"Compared: {names[0]} → {names[1]}"


def test_the_title_lists_all_models() -> None:
    assert page_of(Results([ModelResults("")])).title == "Attention geometry of a network"
    assert page_of(Results([ModelResults("a")])).title == "Attention geometry of a"
    assert page_of(Results([ModelResults("a"), ModelResults("b")])).title == "Attention geometry of a and b"
    several = Results([ModelResults(name) for name in ("a", "b", "a", "c")])
    assert page_of(several).title == "Attention geometry of a, b and c"


def test_a_model_compared_with_itself_is_shown_once() -> None:
    folder = str(attngeo.bundled("encoder"))
    results = Results([ModelResults(short_name(folder), folder)])
    add_missing(results, Wanted())
    add_comparison(results, Path(folder), Wanted())
    assert [model.name for model in results.models] == [short_name(folder)]


def test_two_models_of_one_class_in_memory_are_told_apart() -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    first, second = BertModel(config), BertModel(config)
    results = Results([ModelResults("BertModel", first)])
    add_missing(results, Wanted())
    add_comparison(results, second, Wanted())
    names = ["BertModel (1)", "BertModel (2)"]
    assert [model.name for model in results.models] == [model.scored_name for model in results.models] == names
    [comparison] = results.comparisons
    assert (comparison.a, comparison.b) == tuple(names)
