"""What a report computes: the options of the call reach every function that it asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("torch")

from attngeo.organization import NetworkTensor
from attngeo.reporting import missing
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
