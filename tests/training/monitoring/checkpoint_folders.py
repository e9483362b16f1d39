"""Folders of random BERT checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG = {"model_type": "bert", "num_attention_heads": 4, "hidden_size": 32, "num_hidden_layers": 2}


def random_weights(step: int, layers: int = 2, run: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng([run, step])
    return {
        f"encoder.layer.{layer}.attention.self.{side}.weight": rng.standard_normal((32, 32)).astype(np.float32)
        for layer in range(layers)
        for side in ("query", "key", "value")
    }


def save_checkpoint(folder: Path, step: int, name: str = "checkpoint-{}", **options: Any) -> Path:
    """Write a checkpoint folder with random weights and return it."""
    path = folder / name.format(step)
    path.mkdir(parents=True)
    save_file(random_weights(step, **options), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path
