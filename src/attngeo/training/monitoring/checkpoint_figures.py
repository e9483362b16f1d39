"""The figures of a record, from the weights of a saved checkpoint."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from attngeo.io.threads import prefetch, shared_cores
from attngeo.training.monitoring.records import FIGURES, LayerFigures
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import Layers
from attngeo.weights.scoring.layer import head_scores, layer_form, layer_scores


def checkpoint_figures(source: Layers, heads: bool) -> list[LayerFigures]:
    """Return the figures of every layer of an open checkpoint and, if `heads`, of their heads where they are known."""
    with shared_cores(), closing(prefetch(source, stop=source.stop)) as upcoming:
        return [_layer(weights, heads and weights.heads_known) for weights in upcoming]


def _layer(weights: Layer, heads: bool) -> LayerFigures:
    parts = [layer_scores(*layer_form(weights), weights.rotary, groups=weights.groups)]
    parts += [head_scores(weights, weights.rotary)] if heads else []
    figures = np.concatenate([np.stack([getattr(part, name) for name in FIGURES], -1) for part in parts])  # [1 + H, 8]
    if weights.cross:  # queries and keys are different tokens, so that none attends to itself
        figures[:, FIGURES.index("self_attending")] = np.nan
    whole, *each = figures.tolist()
    return LayerFigures(weights.stack, weights.layer, whole, each, numbers=weights.numbers)
