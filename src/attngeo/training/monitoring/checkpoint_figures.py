"""The figures of a record, from the weights of a saved checkpoint."""

from __future__ import annotations

import math
from contextlib import closing

import numpy as np

from attngeo.arrays import Floats
from attngeo.io.threads import prefetch, shared_cores
from attngeo.training.monitoring.records import FIGURES, LayerFigures
from attngeo.weights.layout.layer import Layer, layer_form_factors
from attngeo.weights.layout.layers import Layers
from attngeo.weights.scoring.directionality import coefficient_of_variation
from attngeo.weights.scoring.dominance import dominance
from attngeo.weights.scoring.factored import FormScores
from attngeo.weights.scoring.layer import head_scores, layer_factors, layer_scores
from attngeo.weights.scoring.rotary import rotary_average
from attngeo.weights.scoring.self_attending import self_attending


def checkpoint_figures(source: Layers, heads: bool) -> list[LayerFigures]:
    """Return the figures of every layer of an open checkpoint and, if `heads`, of their heads where they are known."""
    with shared_cores(), closing(prefetch(source, stop=source.stop)) as upcoming:
        return [_layer(weights, heads and weights.heads_known) for weights in upcoming]


def _layer(weights: Layer, heads: bool) -> LayerFigures:
    factors = layer_factors(weights)
    groups, size = weights.groups, weights.key.shape[2]
    traces, ropes = _traces(weights), _rope_symmetries(weights, heads)
    scored = [layer_scores(factors.layer_query, factors.layer_key)]
    if heads:
        scored += head_scores(*factors.heads)
    columns = [groups * size] + [size] * len(weights.query)  # of the factors of the layer form, and of every head
    whole, *each = map(_figures, scored, traces, columns, ropes)
    return LayerFigures(weights.stack, weights.layer, whole, each, numbers=weights.numbers)


def _figures(scores: FormScores, trace: float, columns: int, rope: float) -> tuple[float, ...]:
    """Return the FIGURES of one form.

    trace:   tr M
    columns: those of its factors
    rope:    s̄
    """
    norms = scores.row_norms, scores.column_norms
    # Divided by the norm first: squares of very small weights would underflow.
    unit_trace = trace / scores.norm if scores.norm else math.nan
    figures = {
        "symmetry": scores.symmetry,
        "directionality": scores.directionality,
        "norm": scores.norm,
        "row_spread": coefficient_of_variation(norms[0]),
        "column_spread": coefficient_of_variation(norms[1]),
        "dominance": dominance(*norms),
        "self_attending": self_attending(np.asarray(unit_trace), np.ones(()), min(columns, len(norms[0]))),
        "symmetry_rope": rope,
    }
    return tuple(float(figures[name]) for name in FIGURES)


def _traces(weights: Layer) -> Floats:
    """Return tr M of the layer form and of every head, `[1 + H]`; NaN for cross-attention."""
    query, key = weights.query, np.repeat(weights.key, weights.group_size, 0)  # [H, d, r]
    if weights.cross or query.shape != key.shape:
        return np.full(1 + len(query), np.nan)
    of_heads = np.einsum("hdr,hdr->h", query, key, dtype=np.float64)
    return np.array([of_heads.sum(), *of_heads])


def _rope_symmetries(weights: Layer, heads: bool) -> Floats:
    """Return s̄ of the layer form and, if `heads`, of every head: `[1 + H]`; NaN where nothing rotates."""
    if weights.rotary is None:
        return np.full(1 + len(weights.query), np.nan)
    query, key = weights.query.astype(np.float64), weights.key.astype(np.float64)
    size = weights.group_size
    of_layer = rotary_average(*layer_form_factors(query, key), weights.rotary).symmetry  # [G, d, r]
    if not heads:
        return np.array([of_layer])
    of_heads = rotary_average(query[:, None], np.repeat(key, size, 0)[:, None], weights.rotary).symmetry  # [H]
    return np.array([of_layer, *of_heads])
