"""Scores of all layers and heads of a model at once, on the device its weights are on, read back in one go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attngeo.dynamics.monitoring.records import FIGURES, LayerFigures
from attngeo.weights.layout.attention_weights import AttentionWeights
from attngeo.weights.scoring.factored import GAMMA, NOTHING

TOGETHER = 2**27  # numbers of queries that are multiplied at once: 1 GB, so that large models go layer by layer


Sums = tuple[Tensor, Tensor, Tensor, Tensor | None]  # of M²: over rows, over columns, over all; tr M², if M is square


def form_figures(query: Tensor, key: Tensor) -> Tensor:
    """FIGURES [..., 5] of forms M = query keyᵀ from factors [..., d_q, r], [..., d_k, r]; formulas as in `score`."""
    if query.shape[-1] < max(query.shape[-2], key.shape[-2]):
        return figures_of(factor_sums(query, key))
    form = query @ key.mT  # [..., d_q, d_k], no larger than the r×r products
    rows, columns = form.square().sum(-1), form.square().sum(-2)
    square = query.shape[-2] == key.shape[-2]
    return figures_of((rows, columns, rows.sum(-1), (form * form.mT).sum((-1, -2)) if square else None))


def factor_sums(query: Tensor, key: Tensor) -> Sums:
    """From the factors alone; of query = key the two sides come out alike to the last bit."""
    gram_query, gram_key = query.mT @ query, key.mT @ key  # [..., r, r]
    rows = (query @ gram_key * query).sum(-1)  # [..., d_q]
    columns = (key @ gram_query * key).sum(-1)  # [..., d_k]
    cross = key.mT @ query if query.shape[-2] == key.shape[-2] else None
    trace = (cross * cross.mT).sum((-1, -2)) if cross is not None else None
    return rows, columns, (gram_query * gram_key).sum((-1, -2)), trace


def figures_of(sums: Sums) -> Tensor:
    """FIGURES [..., 5]."""
    rows, columns, norm2, trace = sums
    rows, columns = rows.clamp_min(0).sqrt(), columns.clamp_min(0).sqrt()
    nothing = norm2 <= 0  # a zero form has no score
    none = torch.full_like(norm2, torch.nan)
    symmetry = none if trace is None else (trace / norm2).clamp(-1, 1)
    above_rows, above_columns = excess(rows), excess(columns)
    above = above_rows + above_columns
    # as `score` has it: 0 where nothing stands out, but not where there is nothing
    direction = torch.where(above == 0, 0.0, (above_rows - above_columns) / above)
    figures = [symmetry, direction.where(~nothing, none), norm2.clamp_min(0).sqrt(), spread(rows), spread(columns)]
    return torch.stack(figures, -1)


def excess(norms: Tensor) -> Tensor:
    """Σ (ρ − t) over ρ > t = mean + γ·std (unbiased) of norms [..., d]."""
    threshold = norms.mean(-1, keepdim=True) + GAMMA * norms.std(-1, keepdim=True)
    above = norms - threshold
    return above.where(above > NOTHING * threshold, 0.0 * threshold).sum(-1)


def spread(norms: Tensor) -> Tensor:
    """std/mean (unbiased) of norms [..., d]: 0 where all rows, or columns, are as long."""
    return norms.std(-1) / norms.mean(-1)


@dataclass(frozen=True)
class Measured:
    """Figures of several layers of one shape, still on the device."""

    layers: tuple[tuple[str, int], ...]  # stack and number
    whole: Tensor  # [n, figures]
    heads: Tensor  # [n, H, figures], H = 0 where heads are not known or not wanted


def measured(layers: Iterable[AttentionWeights], heads: bool = True) -> list[Measured]:
    """Figures of all layers, several in each product."""
    return [_measured(some, heads) for some in _together(layers)]


def _together(layers: Iterable[AttentionWeights]) -> Iterator[list[AttentionWeights]]:
    some: list[AttentionWeights] = []
    for weights in layers:
        if some and (_shape(weights) != _shape(some[0]) or (len(some) + 1) * weights.query.numel() > TOGETHER):  # type: ignore[attr-defined]
            yield some
            some = []
        some.append(weights)
    if some:
        yield some


def _shape(weights: AttentionWeights) -> tuple[Any, ...]:
    return weights.query.shape, weights.key.shape, weights.heads_known, weights.query.device


def _measured(some: Sequence[AttentionWeights], heads: bool) -> Measured:
    query: Tensor = torch.stack([weights.query for weights in some])  # [n, H, d, r]
    key: Tensor = torch.stack([weights.key for weights in some])  # [n, G, d, r]
    size = some[0].group_size
    # M = Σ_g (Σ_{h in g} W_q^h)(W_k^g)ᵀ: the heads of a group side by side make one long factor
    summed = query.unflatten(1, (-1, size)).sum(2) if size > 1 else query  # [n, G, d, r]
    whole = form_figures(*(side.movedim(1, 2).flatten(2) for side in (summed, key)))  # factors [n, d, G·r]
    if heads and some[0].heads_known:
        each = form_figures(query, key.repeat_interleave(size, 1) if size > 1 else key)  # [n, H, figures]
    else:
        each = whole.new_empty(len(some), 0, len(FIGURES))
    return Measured(tuple((weights.stack, weights.layer) for weights in some), whole, each)


def read_back(found: Sequence[Measured], logits: Sequence[Tensor | None]) -> list[LayerFigures]:
    """From the device in one copy; `logits` [H] of every layer, None where they were not heard."""
    device = found[0].whole.device
    heard = [one.double() for one in logits if one is not None]
    parts = [part.flatten().to(device) for one in found for part in (one.whole, one.heads)]
    numbers = iter(torch.cat(parts + [one.to(device) for one in heard]).tolist())

    def take(count: int) -> list[float]:
        return [next(numbers) for _ in range(count)]

    layers = []
    for one in found:
        whole = [take(len(FIGURES)) for _ in one.layers]
        heads = [[take(len(FIGURES)) for _ in range(one.heads.shape[1])] for _ in one.layers]
        layers += [LayerFigures(*place, all_, each) for place, all_, each in zip(one.layers, whole, heads, strict=True)]
    return [one if at is None else replace(one, logits=take(len(at))) for one, at in zip(layers, logits, strict=True)]
