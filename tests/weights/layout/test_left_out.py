"""Attention layers that are not scored are named, so that nobody takes a part of a model for the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attngeo
from attngeo.weights.layout.left_out import unknown_layers

WEIGHT = (8, 8)


def test_query_projections_outside_the_known_layers_are_found() -> None:
    shapes = {
        "text.layers.0.attn.q_proj.weight": WEIGHT,
        "text.layers.0.attn.q_norm.weight": (8,),
        "tower.blocks.3.wqkv.weight": (24, 8),
        "tower.blocks.4.wqkv.weight": (24, 8),
        "language.layers.0.attn.wq_du.weight": WEIGHT,
        "audio.layers.0.query_key_value.weight": (24, 8),
        "pool.query": (1, 8),
        "query_position_embeddings.weight": WEIGHT,
        "query_feat.weight": WEIGHT,
        "dot_product_scoring.query_proj.weight": WEIGHT,
        "former.layer.0.intermediate_query.dense.weight": WEIGHT,
    }
    assert unknown_layers(shapes, {"text.layers.0.attn"}) == [
        "tower.blocks.*.wqkv", "language.layers.*.attn.wq_du", "audio.layers.*.query_key_value"
    ]  # fmt: skip
    known = {"text.layers.0.attn", "tower.blocks.3", "tower.blocks.4", "language.layers.0.attn", "audio.layers.0"}
    assert unknown_layers(shapes, known) == []


def test_linear_attention_and_indexers_are_not_missed() -> None:
    """They have no product of queries and keys between tokens that could be scored."""
    shapes = {
        "layers.0.linear_attn.in_proj_qkv.weight": WEIGHT,
        "layers.1.self_attn.indexer.wq_b.weight": WEIGHT,
        "layers.2.self_attn.qkv_proj.weight": (24, 8),
        "layers.2.self_attn.output_gate.weight": WEIGHT,
    }
    assert unknown_layers(shapes, set()) == []


def test_a_model_of_ones_own_says_what_is_left_out() -> None:
    made = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32)
    weights = {"layers.0.q_proj.weight": made[0], "layers.0.k_proj.weight": made[1], "extra.1.q_a.weight": made[0]}
    note = "state dict: layers are left out, because their layout is unknown: extra.*.q_a"
    assert note in attngeo.score(weights, num_heads=2, nulls=False).notes
    assert note not in attngeo.score(weights, num_heads=2, nulls=False, stack="encoder").notes


@pytest.fixture
def saved(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A tiny random model of a type, saved."""
    from tools.proof.tiny_model import tiny_models

    next(tiny_models(request.param)).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("saved", ["mistral_large4"], indirect=True)
def test_a_vision_tower_alone_is_not_taken_for_a_decoder(saved: Path) -> None:
    """The keys of its language model are shared between layers, in a layout that the table does not have."""
    table = attngeo.score(saved, nulls=False)
    assert set(table.frame["stack"]) == {"vision"}
    assert table.notes == (
        f"{saved}: layers are left out, because their layout is unknown: language_model.layers.*.attention.wq",
    )


@pytest.mark.parametrize("saved", ["granite_speech"], indirect=True)
def test_layers_that_no_live_model_confirmed_are_named(saved: Path) -> None:
    [note] = attngeo.score(saved, nulls=False).notes
    assert note.endswith("because no live model of this type confirmed them: encoder.layers.*.attn")
    assert attngeo.score(saved, nulls=False, stack="text").notes == ()
    unproven = attngeo.score(saved, nulls=False, unproven=True)
    assert "encoder" in set(unproven.frame["stack"]) and not any("left out" in note for note in unproven.notes)


def test_comparisons_and_initialisations_say_what_they_left_out() -> None:
    import torch

    class Part(torch.nn.Module):
        def __init__(self, *names: str) -> None:
            super().__init__()
            for name in names:
                setattr(self, name, torch.nn.Linear(8, 8, bias=False))

    model = torch.nn.ModuleDict({"layer": Part("q_proj", "k_proj"), "extra": Part("q_a")})
    remark = "layers are left out, because their layout is unknown: extra.q_a"
    before = model["extra"].q_a.weight.clone()
    with pytest.warns(UserWarning, match=remark):
        attngeo.symmetric_init_(model, num_heads=2)
    assert torch.equal(model["extra"].q_a.weight, before)
    assert torch.equal(model["layer"].q_proj.weight, model["layer"].k_proj.weight)
    assert attngeo.compare(model, model, num_heads=2).notes[-1] == f"ModuleDict: {remark}"


@pytest.mark.parametrize("saved", ["mistral_large4"], indirect=True)
def test_the_table_of_an_atlas_says_what_was_left_out(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    from attngeo.atlas import Atlas

    atlas = Atlas(tmp_path_factory.mktemp("atlas"))
    atlas.add([str(saved)])
    [notes] = atlas.models()["notes"]
    assert "layers are left out, because their layout is unknown" in notes
