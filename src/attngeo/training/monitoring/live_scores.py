"""Scores of all layers and heads of a model in training, computed in batches on the device that holds its weights.

The formulas are those of `attngeo.weights.scoring`. All figures are copied to the CPU at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attngeo.training.monitoring.records import FIGURES, LayerFigures
from attngeo.weights.layout.layer import Layer, layer_form_factors
from attngeo.weights.scoring.engine import Scores, score_precisely
from attngeo.weights.scoring.layer import side_by_side

BATCH_ENTRIES = 2**25  # entries of the queries multiplied at once, 256 MB: layers of a large model are measured singly


def figures(scores: Scores[Tensor]) -> Tensor:
    """Return the FIGURES `[..., 8]` of forms from their scores."""
    return torch.stack([getattr(scores, name) for name in FIGURES], -1)


@dataclass(frozen=True)
class DeviceFigures:
    """Figures of several layers of one shape, still on the device."""

    layers: tuple[tuple[str, int], ...]  # stack and number of each of the n layers
    of_layers: Tensor  # [n, figures]
    of_heads: Tensor  # [n, H, figures]; H = 0 where heads are unknown or not requested
    numbers: tuple[tuple[int, ...] | None, ...]  # per layer, of its heads in the full model, if it was pruned


def measure_layers(layers: Iterable[Layer], heads: bool = True) -> list[DeviceFigures]:
    """Return the figures of all layers, whose weights are tensors; consecutive layers of one shape form a batch."""
    return [_measure_batch(batch, heads) for batch in _batches(layers)]


def _batches(layers: Iterable[Layer]) -> Iterator[list[Layer]]:
    """Yield consecutive layers of one shape, with at most BATCH_ENTRIES entries in their queries."""
    batch: list[Layer] = []
    for weights in layers:
        entries = (len(batch) + 1) * math.prod(weights.query.shape)
        if batch and (_batch_key(weights) != _batch_key(batch[0]) or entries > BATCH_ENTRIES):
            yield batch
            batch = []
        batch.append(weights)
    if batch:
        yield batch


def _batch_key(weights: Layer) -> tuple[object, ...]:
    same = (weights.heads_known, weights.cross, weights.rotary)
    return weights.query.shape, weights.key.shape, weights.query.device, *same


def _measure_batch(batch: Sequence[Layer], heads: bool) -> DeviceFigures:
    query: Tensor = torch.stack([weights.query for weights in batch])  # [n, H, d_q, r]
    key: Tensor = torch.stack([weights.key for weights in batch])  # [n, G, d_k, r]
    rotary, groups = batch[0].rotary, batch[0].groups
    form = [side_by_side(side) for side in layer_form_factors(query, key, axis=1)]  # [n, d, G·r]
    of_layers = figures(score_precisely(form[0], form[1], rotary, groups=groups))
    of_heads = of_layers.new_empty(len(batch), 0, len(FIGURES))
    if heads and batch[0].heads_known:
        query, key = query.unflatten(1, (groups, -1)), key.unsqueeze(2)  # [n, G, H/G, d_q, r], [n, G, 1, d_k, r]
        of_heads = figures(score_precisely(query, key, rotary)).flatten(1, 2)  # [n, H, figures]
    if batch[0].cross:  # queries and keys are different tokens, so that none attends to itself
        of_layers[..., FIGURES.index("self_attending")] = of_heads[..., FIGURES.index("self_attending")] = torch.nan
    layers = tuple((weights.stack, weights.layer) for weights in batch)
    return DeviceFigures(layers, of_layers, of_heads, tuple(weights.numbers for weights in batch))


def copy_to_cpu(batches: Sequence[DeviceFigures], logits: Sequence[Tensor | None]) -> list[LayerFigures]:
    """Return the figures of each layer, copied from the device at once.

    logits: for each layer its largest |attention logit| per head, [H]; None where they were not measured
    """
    device = batches[0].of_layers.device
    parts = [part.flatten().to(device) for batch in batches for part in (batch.of_layers, batch.of_heads)]
    parts += [maxima.double().to(device) for maxima in logits if maxima is not None]
    numbers = iter(torch.cat(parts).tolist())

    def take(count: int) -> list[float]:
        return [next(numbers) for _ in range(count)]

    layers = []
    for batch in batches:
        of_layers = [take(len(FIGURES)) for _ in batch.layers]
        of_heads = [[take(len(FIGURES)) for _ in range(batch.of_heads.shape[1])] for _ in batch.layers]
        for (stack, layer), whole, heads, kept in zip(batch.layers, of_layers, of_heads, batch.numbers, strict=True):
            layers.append(LayerFigures(stack, layer, whole, heads, numbers=kept))
    return [
        figures if maxima is None else replace(figures, logits=take(len(maxima)))
        for figures, maxima in zip(layers, logits, strict=True)
    ]
