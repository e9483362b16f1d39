"""Criteria with one fixed score per head; the head with the smallest score goes first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attngeo.applications.prune.calibration.measure import LayerMeasurement
from attngeo.applications.prune.criteria.greedy import FixedCosts, UnitCost
from attngeo.applications.prune.removal.layers import PrunableLayer
from attngeo.arrays import Floats
from attngeo.weights.scoring.symmetry import squared_norm


def unit_costs(scores: Floats, units: Sequence[tuple[int, ...]]) -> FixedCosts:
    """Return the cost of each unit: the sum of the scores [H] of its heads."""
    return FixedCosts([UnitCost(float(scores[list(heads)].sum()), {}) for heads in units])


def magnitude(layer: PrunableLayer) -> Floats:
    """Return ‖W_v W_o‖·‖W_q W_kᵀ‖ of every head, [H]; QK-norms are part of W_q and W_k, as in all scores."""
    heads = layer.heads
    tensors = {name: tensor.detach().double().cpu().numpy() for name, tensor in layer.tensors().items()}
    query, key = map(np.array, layer.site.storage.factors(tensors, heads))  # [H, d, r], [G, d, r]
    layer.site.qk_norms.include(query, key, tensors)
    value = _values(layer, tensors)  # [G, d, r]
    output = layer.output_weight.detach().double().cpu().numpy().reshape(heads.queries, heads.size, -1)  # [H, r, d]
    of_head = np.arange(heads.queries) // heads.group
    form = squared_norm(_gram(query), _gram(key)[of_head])  # [H], ‖W_q W_kᵀ‖²
    circuit = squared_norm(_gram(value)[of_head], output @ output.swapaxes(1, 2))  # [H], ‖W_v W_o‖²
    scores: Floats = np.sqrt(np.maximum(form, 0) * np.maximum(circuit, 0))
    return scores


def random_scores(measured: Sequence[PrunableLayer], seed: int) -> list[Floats]:
    """Return random scores of all heads, in random order over all layers."""
    generator = np.random.default_rng(seed)
    return [generator.random(layer.heads.queries) for layer in measured]


def measured_scores(measured: LayerMeasurement, name: str) -> Floats:
    """Return the scores [H] that were measured under this name: gradient, fisher or output."""
    return {"gradient": measured.gate_magnitude, "fisher": measured.gate_fisher, "output": measured.output_norm}[name]


def _values(layer: PrunableLayer, tensors: dict[str, Floats]) -> Floats:
    """Return the value projections [G, d, r]."""
    from attngeo.applications.prune.removal.cut import value_rows

    matrix = layer.site.storage.matrix(tensors[f"{layer.value}.weight"])  # [rows, d]
    values: Floats = matrix[value_rows(layer)].swapaxes(1, 2)  # [G, r, d] → [G, d, r]
    return values


def _gram(factors: Floats) -> Floats:
    """Return WᵀW [n, r, r] of factors [n, d, r]."""
    gram: Floats = factors.swapaxes(1, 2) @ factors
    return gram
