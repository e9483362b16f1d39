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
from attngeo.weights.scoring.directionality import coefficient_of_variation, directionality
from attngeo.weights.scoring.dominance import dominance
from attngeo.weights.scoring.norms import column_norms, dense_norms, row_norms
from attngeo.weights.scoring.rotary import rotary_average
from attngeo.weights.scoring.self_attending import self_attending
from attngeo.weights.scoring.symmetry import squared_norm, symmetry, symmetry_ratio, trace_of_square

BATCH_ENTRIES = 2**25  # entries of the queries multiplied at once, 256 MB: layers of a large model are measured singly


def form_figures(query: Tensor, key: Tensor) -> Tensor:
    """Return the FIGURES `[..., 8]` of forms M = query keyᵀ, from the smaller of M and the r×r products.

    query: [..., d_q, r]
    key:   [..., d_k, r]
    """
    if query.shape[-1] < max(query.shape[-2], key.shape[-2]):
        return figures_from_factors(query, key)
    form = query @ key.mT  # [..., d_q, d_k]
    square = (form * form).sum((-1, -2))  # [...]
    rows, columns = dense_norms(form)  # [..., d_q], [..., d_k]
    if form.shape[-1] != form.shape[-2]:
        return _stacked(None, None, rows, columns, square)
    tau = self_attending(_trace(form), square, form.shape[-1])
    return _stacked(symmetry_ratio(trace_of_square(form), square), tau, rows, columns, square)


def figures_from_factors(query: Tensor, key: Tensor) -> Tensor:
    """Return the FIGURES `[..., 8]` of forms M = query keyᵀ, from the r×r products of the factors.

    query: [..., d_q, r]
    key:   [..., d_k, r]

    If query and key are equal, row and column norms are equal to the last bit, so the directionality is exactly 0.
    """
    gram_query, gram_key = query.mT @ query, key.mT @ key  # [..., r, r]
    square = squared_norm(gram_query, gram_key)  # [...]
    rows, columns = row_norms(query, gram_key), column_norms(key, gram_query)  # [..., d_q], [..., d_k]
    if query.shape[-2] != key.shape[-2]:
        return _stacked(None, None, rows, columns, square)
    cross = key.mT @ query  # [..., r, r]
    tau = self_attending(_trace(cross), square, min(query.shape[-2:]))
    return _stacked(symmetry(cross, gram_query, gram_key), tau, rows, columns, square)


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _stacked(score: Tensor | None, tau: Tensor | None, rows: Tensor, columns: Tensor, square: Tensor) -> Tensor:
    """Return the FIGURES `[..., 8]`, with NaN as symmetry_rope.

    score, tau: [...], s(M) and τ(M); None where M is not square
    rows, columns: [..., d_q], [..., d_k], norms of the rows and columns of M
    square: [...], ‖M‖²
    """
    missing = torch.full_like(square, torch.nan)
    norm = square.clamp_min(0).sqrt()
    figures = {
        "symmetry": missing if score is None else score,
        "directionality": directionality(rows, columns).where(norm > 0, missing),  # a form that is zero has no score
        "norm": norm,
        "row_spread": coefficient_of_variation(rows),
        "column_spread": coefficient_of_variation(columns),
        "dominance": dominance(rows, columns),
        "self_attending": missing if tau is None else tau,
        "symmetry_rope": missing,
    }
    return torch.stack([figures[name] for name in FIGURES], -1)


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
    scale = _normalise(query) * _normalise(key)  # [n]
    size = batch[0].group_size
    # The layer form M = Σ_g (Σ_{h in g} W_q^h)(W_k^g)ᵀ has the groups side by side as its factors.
    summed, groups = layer_form_factors(query, key, axis=1)  # [n, G, d_q, r], [n, G, d_k, r]
    of_layers = form_figures(*(side.movedim(1, 2).flatten(2) for side in (summed, groups)))  # factors [n, d, G·r]
    of_heads = of_layers.new_empty(len(batch), 0, len(FIGURES))
    rotary, rope = batch[0].rotary, FIGURES.index("symmetry_rope")
    if rotary is not None:
        of_layers[:, rope] = rotary_average(summed, groups, rotary).symmetry
    if heads and batch[0].heads_known:
        repeated = key.repeat_interleave(size, 1) if size > 1 else key  # [n, H, d_k, r]
        of_heads = form_figures(query, repeated)  # [n, H, figures]
        if rotary is not None:  # a head is a layer with one key head
            of_heads[:, :, rope] = rotary_average(query.unsqueeze(2), repeated.unsqueeze(2), rotary).symmetry
    if batch[0].cross:  # queries and keys are different tokens, so that none attends to itself
        of_layers[..., FIGURES.index("self_attending")] = of_heads[..., FIGURES.index("self_attending")] = torch.nan
    norm = FIGURES.index("norm")
    of_layers[:, norm] *= scale
    of_heads[:, :, norm] *= scale[:, None]
    layers = tuple((weights.stack, weights.layer) for weights in batch)
    return DeviceFigures(layers, of_layers, of_heads, tuple(weights.numbers for weights in batch))


def _normalise(factors: Tensor) -> Tensor:
    """Divide each factor of `[n, H, d, r]` in place by a power of 2 near its largest entry; return the powers, `[n]`.

    The division is exact. Without it, the squares of very small or very large float64 weights would leave the range of
    float64. The scores do not depend on it.
    """
    largest = torch.linalg.vector_norm(factors, ord=math.inf, dim=(1, 2, 3))
    scale = torch.exp2(torch.frexp(largest)[1].clamp(-1000, 1000).to(factors.dtype))
    factors /= scale[:, None, None, None]
    return scale


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
