"""Extraction from diffusers models against live models: self- and cross-attention, joint attention, UNets."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

import diffusers
import torch
from typer.testing import CliRunner

import attngeo
from attngeo.cli import app
from attngeo.errors import LayoutError, UnprovenError
from attngeo.weights.layout.facts import family
from attngeo.weights.layout.layers import open_layers
from tools.proof.agreement import TOLERANCE
from tools.proof.diffusers.compare import match_site
from tools.proof.diffusers.prove import EXAMPLES, prove_class, record
from tools.proof.product_recorder import recorded_products

RECORD = json.loads((Path(__file__).resolve().parents[3] / "docs/coverage_diffusers.json").read_text("utf-8"))
RIGHT = [name for name, verdict in RECORD["classes"].items() if verdict["status"] == "right"]
QUICK = [
    "UNet2DConditionModel",
    "DiTTransformer2DModel",
    "PixArtTransformer2DModel",
    "SD3Transformer2DModel",
    "FluxTransformer2DModel",
    "QwenImageTransformer2DModel",
    "WanTransformer3DModel",
    "HunyuanVideoTransformer3DModel",
]


pytestmark = pytest.mark.usefixtures("restored_facts", "ignored_warnings", "one_torch_thread")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RIGHT]
)
def test_extracted_heads_reproduce_the_live_products(name: str) -> None:
    verdict, stored = vars(prove_class(name)), RECORD["classes"][name]
    assert verdict["status"] == "right", verdict["reason"]
    assert not verdict["skip"] and verdict["worst"] <= TOLERANCE
    assert all(verdict[key] == stored[key] for key in ("stacks", "cross", "rotary", "qk_norm", "sites"))


def test_the_page_has_the_classes_it_must_have() -> None:
    assert len(RIGHT) >= 40 and set(QUICK) <= set(RIGHT)
    for name, verdict in RECORD["classes"].items():
        facts = family(f"diffusers:{name}")
        assert facts.status == verdict["status"]
        assert facts.cross == (None if verdict["cross"] is None else tuple(verdict["cross"]))


def live_model(name: str) -> Any:
    """Return a tiny model with random weights, built with all positions zero."""
    from tools.proof.comparable_model import randomise

    with recorded_products():
        model = getattr(diffusers, name)(**EXAMPLES[name][0].config).eval()
    randomise(model)
    return model


def test_forms_of_another_stream_or_pairing_are_noticed() -> None:
    model = live_model("FluxTransformer2DModel")
    products = record(model, EXAMPLES["FluxTransformer2DModel"][0], rotating=False)
    with open_layers(model) as opened:
        layers = {layer.stack: layer for layer in opened}
    assert set(layers) == {"single", "image", "text", "image-to-text", "text-to-image"}
    for layer in layers.values():
        assert match_site(model, layer, products).error < TOLERANCE
        rolled = dataclasses.replace(layer, key=np.roll(layer.key, 1, axis=0))
        assert match_site(model, rolled, products).error > 1e-2
    for stack, other in (("image", "text"), ("text", "image"), ("image-to-text", "text-to-image")):
        exchanged = dataclasses.replace(layers[stack], query=layers[other].query, key=layers[other].key)
        assert match_site(model, exchanged, products).error > 1e-2


def test_a_wrong_number_of_heads_is_noticed() -> None:
    """The `attention_head_dim` of this class counts heads; read as a size it would give other heads."""
    model = live_model("UNet2DConditionModel")
    products = record(model, EXAMPLES["UNet2DConditionModel"][0], rotating=False)
    with open_layers(model, stack="self", layers=0) as opened:
        (weights,) = opened
    assert match_site(model, weights, products).error < TOLERANCE
    assert weights.query.shape == (2, 32, 16)
    sides = {name: getattr(weights, name).swapaxes(1, 2).reshape(16, 2, 32).swapaxes(1, 2) for name in ("query", "key")}
    assert match_site(model, dataclasses.replace(weights, **sides), products).error > 1e-2


@pytest.mark.parametrize("name", ["UNet2DConditionModel", "FluxTransformer2DModel"])
def test_folder_shards_pickle_and_module_give_the_same_scores(name: str, tmp_path: Path) -> None:
    model = live_model(name)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="200KB")
    model.save_pretrained(tmp_path / "pickle", safe_serialization=False)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert (tmp_path / "pickle" / "diffusion_pytorch_model.bin").exists()
    whole = attngeo.score(tmp_path / "whole", model="")
    for ref in (tmp_path / "shards", tmp_path / "pickle", model):
        assert attngeo.score(ref, model="").frame.equals(whole.frame)
    holder = torch.nn.Sequential(torch.nn.DataParallel(model), torch.nn.Linear(2, 2))
    assert attngeo.score(holder, model="").frame.equals(whole.frame)
    rotary = set(whole.frame["rotary"])
    assert rotary == ({"no"} if name == "UNet2DConditionModel" else {"not proved"})
    crosses = {row["stack"]: row["cross"] for row in whole.frame.iter_rows(named=True)}
    assert {stack for stack, cross in crosses.items() if cross} == (
        {"cross"} if name == "UNet2DConditionModel" else {"image-to-text", "text-to-image"}
    )


def test_values_that_an_old_config_leaves_out_are_those_of_the_class(tmp_path: Path) -> None:
    channels = {"block_out_channels": (32, 64), "norm_num_groups": 8, "layers_per_block": 1, "cross_attention_dim": 24}
    blocks = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    model = diffusers.UNet2DConditionModel(**channels, **blocks)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config.pop("attention_head_dim"), config.pop("num_attention_heads")) == (8, None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with open_layers(tmp_path) as opened:
        heads = [layer.heads.queries for layer in opened.unread]
    assert set(heads) == {8}
    # null is a value: one head, as large as the layer
    model = diffusers.UNet2DModel(
        block_out_channels=(32, 64),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=None,
    )
    assert {layer.heads.queries for layer in open_layers(model).unread} == {1}


def test_contradictions_and_unknown_classes_are_one_line_errors(tmp_path: Path) -> None:
    live_model("UNet2DConditionModel").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    def error_with(**changes: Any) -> str:
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises((LayoutError, UnprovenError)) as caught:
            attngeo.score(tmp_path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "attention_head_dim is 'x', expected a positive whole number" in error_with(attention_head_dim="x")
    assert "32 rows do not divide into 5 heads (attention_head_dim)" in error_with(attention_head_dim=5)
    assert "diffusers:MyUNet was never checked against a live model" in error_with(_class_name="MyUNet")
    refused = error_with(_class_name="SanaTransformer2DModel")
    assert "SanaTransformer2DModel is refused: its self-attention is linear" in refused


def test_the_verdict_of_a_diffusers_model_does_not_mention_published_models(tmp_path: Path) -> None:
    live_model("DiTTransformer2DModel").save_pretrained(tmp_path)
    table = attngeo.score(tmp_path)
    assert table.model_types == {str(tmp_path): "diffusers:DiTTransformer2DModel"}
    done = CliRunner().invoke(app, ["score", str(tmp_path), "--published"])
    assert done.exit_code == 0 and "not distinguishable from chance" in done.stdout
    assert "published" not in done.stdout and "percentile" not in done.stdout
