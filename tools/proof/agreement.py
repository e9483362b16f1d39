"""Compare x M_h xᵀ, with M_h cut from a checkpoint, with the products of queries and keys of a live model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from attngeo.weights.layout.attention_weights import AttentionWeights
from tools.proof.product_recorder import Product

TOLERANCE = 1e-4  # relative error of x M_h xᵀ per head
_DIFFERENT = 1e-2  # relative error above which two heads are told apart
_INPUTS = 8  # inputs tried per product


def agreement(weights: AttentionWeights, product: Product) -> float:
    """Return the largest relative error over heads, for the recorded input with the smallest; inf: no shape fits."""
    return compare(weights, product)[0]


def compare(weights: AttentionWeights, product: Product) -> tuple[float, Tensor | None]:
    """Return `agreement` and the input x [T, d] of the queries that gave it."""
    no_match = float("inf"), None
    heads, width, _ = weights.query.shape
    groups, key_width, _ = weights.key.shape
    count, rows, _ = product.query.shape
    if count % heads:
        return no_match
    batch = count // heads
    query_inputs = _candidate_inputs(product, batch * rows, width)
    key_inputs = _candidate_inputs(product, batch * product.key.shape[1], key_width)
    if not query_inputs or not key_inputs:
        return no_match
    key = product.key
    if key.shape[0] != count:
        if count % key.shape[0] or key.shape[0] % batch:
            return no_match
        key = key.reshape(batch, -1, *key.shape[1:]).repeat_interleave(count // key.shape[0], 1)
        key = key.reshape(count, *key.shape[2:])
    live = product.query @ key.transpose(-1, -2)  # [batch·H, N, M]
    w_q, w_k = (torch.from_numpy(np.ascontiguousarray(side)) for side in (weights.query, weights.key))
    best: tuple[float, Tensor | None] = no_match
    for axis in (0, 1) if batch > 1 else (0,):
        shape = (batch, heads) if axis == 0 else (heads, batch)
        logits = live.reshape(*shape, *live.shape[1:])
        logits = logits if axis == 0 else logits.transpose(0, 1)  # [batch, H, N, M]
        for x_q in query_inputs:
            q = torch.einsum("bnd,hdr->bhnr", x_q.reshape(batch, rows, width), w_q)
            for x_k in [x_q] if any(x_q is t for t in key_inputs) and not weights.cross else key_inputs:
                k = torch.einsum("bmd,gdr->bgmr", x_k.reshape(batch, -1, key_width), w_k)
                error = _error(logits, q @ k.repeat_interleave(heads // groups, 1).transpose(-1, -2))
                if error < best[0]:
                    best = error, x_q
                if error < TOLERANCE:
                    return best
    return best


def exchange_is_noticed(weights: AttentionWeights, product: Product) -> bool:
    """Return whether exchanging two query heads (with one head: queries and keys) makes the products disagree."""
    if weights.query.shape[0] < 2:
        wrong = replace(weights, query=weights.key, key=weights.query)
    else:
        order = np.arange(weights.query.shape[0])
        order[[0, -1]] = order[[-1, 0]]
        wrong = replace(weights, query=weights.query[order])
    return agreement(wrong, product) > _DIFFERENT


def _candidate_inputs(product: Product, tokens: int, width: int) -> list[Tensor]:
    """Return the distinct recorded inputs of shape [tokens, width], latest first."""
    inputs: list[Tensor] = []
    for projection in reversed(product.before):
        x = projection.tokens
        if x.shape == (tokens, width) and not any(torch.equal(x, other) for other in inputs):
            inputs.append(x)
    return inputs[:_INPUTS]


def _error(live: Tensor, ours: Tensor) -> float:
    """Return the largest relative error over heads, after one positive scale for the whole layer."""
    scale = (live * ours).sum() / (ours * ours).sum().clamp_min(1e-30)
    if not torch.isfinite(scale) or scale <= 0:
        return float("inf")
    difference = (live - scale * ours).pow(2).sum((0, 2, 3)).sqrt()  # [H]
    return float((difference / live.pow(2).sum((0, 2, 3)).sqrt().clamp_min(1e-30)).max())
