"""Attention layers with random weights, and their dense forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from attngeo.weights.layout.layer import Layer
from tests.weights import dense_scores as dense


def random_layer(heads: int = 6, groups: int = 2, d: int = 40, r: int = 4, seed: int = 0, **fields: Any) -> Layer:
    """Return a layer with Gaussian float32 weights, views of arrays that are stored [out, in]."""
    rng = np.random.default_rng(seed)
    query = rng.standard_normal((heads, r, d), dtype=np.float32).transpose(0, 2, 1)  # [H, d, r]
    key = rng.standard_normal((groups, r, d), dtype=np.float32).transpose(0, 2, 1)  # [G, d, r]
    return Layer(**{"stack": "decoder", "layer": 0, "query": query, "key": key} | fields)


def dense_forms(layer: Layer) -> list[np.ndarray]:
    """Return M_h [d, d] of every head; query head h reads key head h // (H/G)."""
    return [dense.form(query, layer.key[h // layer.group_size]) for h, query in enumerate(layer.query)]
