"""Batches of random tokens, folders of random checkpoints, and the difference between a record and the scores."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import attngeo

CONFIG = {"model_type": "bert", "num_attention_heads": 4, "hidden_size": 32, "num_hidden_layers": 2}


def random_weights(step: int, layers: int = 2, run: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng([run, step])
    return {
        f"encoder.layer.{layer}.attention.self.{side}.weight": rng.standard_normal((32, 32)).astype(np.float32)
        for layer in range(layers)
        for side in ("query", "key", "value")
    }


def save_checkpoint(folder: Path, step: int, name: str = "checkpoint-{}", **options: Any) -> Path:
    """Write the folder of a BERT checkpoint with random weights and return it."""
    path = folder / name.format(step)
    path.mkdir(parents=True)
    save_file(random_weights(step, **options), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def random_tokens(rows: int = 4, length: int = 12, seed: int = 0) -> Any:
    """Return token ids [rows, length]."""
    import torch

    return torch.randint(3, 60, (rows, length), generator=torch.Generator().manual_seed(seed))


def make_batch(model: Any, rows: int = 4) -> dict[str, Any]:
    """Return a batch that `model` can run on."""
    ids = random_tokens(rows)
    if model.config.is_encoder_decoder:
        return {"input_ids": ids, "decoder_input_ids": random_tokens(rows, 7, 1)}
    return {"input_ids": ids, "labels": ids}


def difference(row: dict[str, Any], ref: Any) -> float:
    """Return the largest difference between a record and `attngeo.score` of a checkpoint, over all layers and heads."""
    largest, layers = 0.0, list(zip(row["stack"], row["layer"], strict=True))
    frame = attngeo.score(ref, nulls=False, folded=False).frame
    assert frame.height == len(layers) + sum(map(len, row["head_symmetry"]))
    for scored in frame.iter_rows(named=True):
        index = layers.index((scored["stack"], scored["layer"]))
        for name in ("symmetry", "directionality", "dominance", "self_attending", "symmetry_rope"):
            value = None
            if name in row:
                value = row[name][index] if scored["head"] is None else row[f"head_{name}"][index][scored["head"]]
            assert (value is None) == (scored[name] is None), (name, value, scored[name])
            if value is not None:
                largest = max(largest, abs(value - scored[name]))
    return largest


def difference_when_saved(row: dict[str, Any], model: Any) -> float:
    """Return the largest difference between a record and the scores of `model` after it is saved."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return difference(row, Path(folder))


def recorded_steps(path: Path) -> list[int]:
    """Return the step of each line of a file of records."""
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]
