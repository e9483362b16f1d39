"""Measure what is fetched from the hub to score a model: bytes against those of Q and K, and requests per layer.

A server on this machine plays the hub and counts. Each model is scored in a new process with empty caches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.weights.made_checkpoints import Array, safetensors_bytes
from tests.weights.sources.hub_server import HubServer, Repo

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Model:
    """A repository to score: its tensors per layer, and how many bytes may be fetched."""

    kind: str
    config: dict[str, Any]
    layer: Shapes  # tensors of one layer, in the order of the file; {} stands for the number of the layer
    needed: int  # values per layer that must be fetched: Q and K, or the fused tensor if they cannot be separated
    slack: float  # the bytes fetched may exceed the needed ones by this factor, not counting the header


def models(width: int = 1024, layers: int = 6) -> list[Model]:
    """Return one model per way of storing queries and keys; heads of size 64, half as many key heads if allowed."""
    heads, half = width // 64, width // 2
    common = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    grouped = {**common, "num_key_value_heads": heads // 2, "intermediate_size": 2 * width}
    block = "model.layers.{}"
    mlp: Shapes = {
        f"{block}.mlp.down_proj.weight": (width, 2 * width),
        f"{block}.mlp.up_proj.weight": (2 * width, width),
    }
    return [
        Model(
            "separate",
            {"model_type": "llama", **grouped},
            mlp
            | {
                f"{block}.self_attn.k_proj.weight": (half, width),
                f"{block}.self_attn.o_proj.weight": (width, width),
                f"{block}.self_attn.q_proj.weight": (width, width),
                f"{block}.self_attn.v_proj.weight": (half, width),
            },
            (width + half) * width,
            1.05,
        ),
        Model(
            "fused by blocks",
            {"model_type": "phi3", **grouped},
            mlp
            | {
                f"{block}.self_attn.o_proj.weight": (width, width),
                f"{block}.self_attn.qkv_proj.weight": (2 * width, width),
            },
            (width + half) * width,
            1.05,
        ),
        Model(
            "Conv1D",
            {"model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads},
            {
                "h.{}.attn.c_attn.bias": (3 * width,),
                "h.{}.attn.c_attn.weight": (width, 3 * width),
                "h.{}.attn.c_proj.weight": (width, width),
                "h.{}.mlp.c_fc.weight": (width, 4 * width),
            },
            3 * width * width,
            1.0,
        ),
        Model(
            "fused per head",
            {"model_type": "gpt_neox", **common, "intermediate_size": 4 * width},
            {
                "gpt_neox.layers.{}.attention.dense.weight": (width, width),
                "gpt_neox.layers.{}.attention.query_key_value.bias": (3 * width,),
                "gpt_neox.layers.{}.attention.query_key_value.weight": (3 * width, width),
                "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight": (4 * width, width),
            },
            3 * width * width,
            1.0,
        ),
    ]


@dataclass(frozen=True)
class Traffic:
    """What was fetched to score one model."""

    sent: int  # bytes of the safetensors file, without its header
    limit: float  # bytes
    whole: int  # bytes of the file
    requests: float  # per layer, with redirects
    seconds: float

    @property
    def met(self) -> bool:
        return self.sent <= self.limit and self.requests <= 2


def measure(model: Model, layers: int) -> Traffic:
    """Return the traffic of scoring `model` from a local server with empty caches, in a new process."""
    random = np.random.default_rng(0)
    tensors: dict[str, Array] = {}
    for layer in range(layers):
        for name, shape in model.layer.items():
            tensors[name.format(layer)] = random.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
    file = safetensors_bytes(tensors)
    header = 8 + int.from_bytes(file[:8], "little")
    repo = Repo({"config.json": json.dumps(model.config).encode(), "model.safetensors": file})
    code = "import attngeo; attngeo.score('org/name', nulls=False, unproven=True)"
    with HubServer({"org/name": repo}) as hub, tempfile.TemporaryDirectory() as home:
        caches = {"HF_HOME": f"{home}/hf", "ATTNGEO_CACHE": f"{home}/attngeo"}
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **caches, "HF_ENDPOINT": hub.url})
        seconds = time.perf_counter() - start
        asked = [request for request in hub.requests if request.file == "model.safetensors"]
        of_header = [request for request in asked if request.range is None or request.range[1] <= header]
    return Traffic(
        sum(request.sent for request in asked) - header,
        model.slack * 2 * model.needed * layers,
        len(file),
        (len(asked) - len(of_header)) / layers,
        seconds,
    )


def main() -> int:
    layers, met = 6, True
    for model in models(layers=layers):
        traffic = measure(model, layers)
        met &= traffic.met
        print(
            f"{model.kind}: {traffic.sent / 1e6:.1f} MB of {traffic.whole / 1e6:.1f} MB fetched, "
            f"{traffic.sent / (2 * model.needed * layers):.3f} × the bytes needed (at most {model.slack}), "
            f"{traffic.requests:.2g} requests per layer (at most 2), {traffic.seconds:.1f} s"
        )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
