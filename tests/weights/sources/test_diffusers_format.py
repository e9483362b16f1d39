"""The format of diffusers: names of weight files, configs with a class name, pipelines of several models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from attngeo.errors import SourceError
from attngeo.weights.sources.checkpoint import ReadRequest
from attngeo.weights.sources.open import open_checkpoint
from tests.weights.sources.hub_job import Machine
from tests.weights.sources.hub_server import HubServer, Repo

CONFIG = {"_class_name": "DiTTransformer2DModel", "num_attention_heads": 2}
NAME = "diffusion_pytorch_model"


def write_model(folder: Path, value: float, name: str = f"{NAME}.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"w": np.full((2, 2), value, np.float32)}, folder / name)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_a_class_name_becomes_a_model_type(tmp_path: Path) -> None:
    with open_checkpoint(write_model(tmp_path, 1.0)) as checkpoint:
        assert checkpoint.config == {**CONFIG, "model_type": "diffusers:DiTTransformer2DModel"}


def test_a_pipeline_names_the_folders_to_score(tmp_path: Path) -> None:
    write_model(tmp_path / "unet", 1.0)
    write_model(tmp_path / "text_encoder", 1.0, "model.safetensors")
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "scheduler_config.json").write_text("{}")
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    save_file({"w": np.ones((2, 2), np.float32)}, tmp_path / "v1-5-pruned.safetensors")  # all parts in one file
    with pytest.raises(SourceError) as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: is a diffusers pipeline, a folder of several models; name the one to score: text_encoder, unet "
        f"(for example {tmp_path}/text_encoder)"
    )
    with open_checkpoint(tmp_path / "unet") as checkpoint:
        assert list(checkpoint.tensors) == ["w"]
    with open_checkpoint(tmp_path / "v1-5-pruned.safetensors") as checkpoint:
        assert list(checkpoint.tensors) == ["w"]


def test_a_model_of_a_pipeline_on_the_hub_is_named_by_its_folder(tmp_path: Path) -> None:
    tensors = {"w": np.ones((2, 2), np.float32)}
    files = {
        "model_index.json": b"{}",
        "transformer/config.json": json.dumps(CONFIG).encode(),
        f"transformer/{NAME}.safetensors": save(tensors),
        "vae/config.json": b"{}",
        f"vae/{NAME}.safetensors": save(tensors),
    }
    with HubServer({"org/name": Repo(files)}) as hub:
        whole, part = Machine(tmp_path, hub.url).open_each(["org/name", "org/name/transformer"], ReadRequest("w"))
    assert whole.error is not None
    assert "name the one to score: transformer, vae (for example org/name/transformer)" in whole.error
    assert part.error is None and part.config == {**CONFIG, "model_type": "diffusers:DiTTransformer2DModel"}
    np.testing.assert_array_equal(part.tensors["w"], tensors["w"])
