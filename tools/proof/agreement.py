"""Compare x M_h xᵀ, with M_h cut from a checkpoint, with the products of queries and keys of a live model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.rotary import RotaryPairs
from tools.proof.product_recorder import Product

TOLERANCE = 1e-4  # relative error of x M_h xᵀ per head
DIFFERENT = 1e-2  # relative error above which two heads are told apart
_INPUTS = 8  # inputs tried per product


@dataclass(frozen=True)
class Match:
    """How a layer reproduces a product: which of the projections before the product have its inputs."""

    error: float  # largest relative error over heads
    query: int  # index of a projection whose input the queries read, counted in `Product.before`
    key: int
    axis: int = 0  # the axis of [batch, H] or [H, batch] that counts the batch

    def tokens(self, product: Product) -> Tensor:
        """Return the input x [T, d] of the queries."""
        return product.before[self.query].tokens


def agreement(weights: Layer, product: Product) -> float:
    """Return the largest relative error over heads, for the recorded input with the smallest; inf: no shape fits."""
    match = compare(weights, product)
    return float("inf") if match is None else match.error


def compare(weights: Layer, product: Product, rotary: RotaryPairs | None = None) -> Match | None:
    """Return the match with the smallest error, with `rotary` at the positions of the product; None: no shape fits."""
    heads, width, _ = weights.query.shape
    count, rows, _ = product.query.shape
    if count % heads:
        return None
    batch = count // heads
    query_inputs = _candidate_inputs(product, batch * rows, width)
    key_inputs = _candidate_inputs(product, batch * product.key.shape[1], weights.key.shape[1])
    live = live_products(product, batch) if query_inputs and key_inputs else None
    if live is None:
        return None
    best: Match | None = None
    for axis in (0, 1) if batch > 1 else (0,):
        for query in query_inputs:
            for key in [query] if query in key_inputs and not weights.cross else key_inputs:
                match = Match(float("inf"), query, key, axis)
                match = replace(match, error=product_error(weights, product, match, rotary, product.positions, live))
                if best is None or match.error < best.error:
                    best = match
                if match.error < TOLERANCE:
                    return match
    return best


def product_error(
    weights: Layer,
    product: Product,
    match: Match,
    rotary: RotaryPairs | None = None,
    positions: Tensor | None = None,
    live: Tensor | None = None,
) -> float:
    """Return the largest relative error over heads of x M_h xᵀ, or of x_i M_Δ x_jᵀ where `rotary` is given.

    positions: [axes, N], of the tokens, Δ = p_j − p_i; None where nothing rotates
    live:      the live products, where they are at hand
    """
    (heads, width, _), key_width = weights.query.shape, weights.key.shape[1]
    batch = product.query.shape[0] // heads
    live = live_products(product, batch) if live is None else live
    x_q, x_k = (product.before[index].tokens for index in (match.query, match.key))
    if live is None or x_q.shape[1] != width or x_k.shape[1] != key_width or len(x_q) % batch or len(x_k) % batch:
        return float("inf")
    logits = live.reshape(*((batch, heads) if match.axis == 0 else (heads, batch)), *live.shape[1:])
    logits = logits if match.axis == 0 else logits.transpose(0, 1)  # [batch, H, N, M]
    q, k = projected(weights, x_q, x_k, batch)
    if q.shape[2] != logits.shape[2] or k.shape[2] != logits.shape[3]:
        return float("inf")
    if rotary is not None:
        assert positions is not None
        if positions.shape[-1] != q.shape[2] or positions.shape[-1] != k.shape[2]:
            return float("inf")
        q, k = rotate(q, rotary, positions), rotate(k, rotary, positions)
    return relative_error(logits, q @ k.transpose(-1, -2))


def projected(weights: Layer, x_q: Tensor, x_k: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Return the queries [batch, H, N, r] of tokens [batch·N, d_q], and the keys [batch, H, M, r] that they meet."""
    w_q, w_k = (torch.from_numpy(np.ascontiguousarray(side)) for side in (weights.query, weights.key))
    q = torch.einsum("bnd,hdr->bhnr", x_q.reshape(batch, -1, w_q.shape[1]), w_q)
    k = torch.einsum("bmd,gdr->bgmr", x_k.reshape(batch, -1, w_k.shape[1]), w_k)
    return q, k.repeat_interleave(len(w_q) // len(w_k), 1)


def rotate(x: Tensor, rotary: RotaryPairs, positions: Tensor) -> Tensor:
    """Return x [..., N, r] with the token at each of the positions [axes, N] rotated by its position."""
    axes = np.zeros(len(rotary.pairs), np.int64) if rotary.axes is None else rotary.axes
    theta = torch.from_numpy(np.ascontiguousarray(rotary.frequencies))  # [n]
    angles = positions.double()[torch.from_numpy(axes)] * theta[:, None]  # [n, N]
    cos, sin = angles.cos().T.float(), angles.sin().T.float()  # [N, n]
    first, second = (torch.from_numpy(np.ascontiguousarray(side)) for side in rotary.pairs.T)
    turned = x.clone()
    turned[..., first] = rotary.factor * (x[..., first] * cos - x[..., second] * sin)
    turned[..., second] = rotary.factor * (x[..., first] * sin + x[..., second] * cos)
    return turned


def live_products(product: Product, batch: int) -> Tensor | None:
    """Return the live products [batch·H, N, M], keys repeated for the queries that share them; None: no shape fits."""
    count, key = product.query.shape[0], product.key
    if key.shape[0] != count:
        if count % key.shape[0] or key.shape[0] % batch:
            return None
        key = key.reshape(batch, -1, *key.shape[1:]).repeat_interleave(count // key.shape[0], 1)
        key = key.reshape(count, *key.shape[2:])
    return product.query @ key.transpose(-1, -2)


def exchange_is_noticed(weights: Layer, product: Product) -> bool:
    """Return whether exchanging two query heads (with one head: queries and keys) makes the products disagree."""
    return agreement(exchanged(weights), product) > DIFFERENT


def exchanged(weights: Layer) -> Layer:
    """Return the layer with its first and last query head exchanged; with one head, with queries and keys exchanged."""
    if len(weights.query) < 2:
        return replace(weights, query=weights.key, key=weights.query)
    order = np.arange(len(weights.query))
    order[[0, -1]] = order[[-1, 0]]
    return replace(weights, query=weights.query[order])


def _candidate_inputs(product: Product, tokens: int, width: int) -> list[int]:
    """Return the projections with distinct inputs of shape [tokens, width], latest first."""
    found: list[int] = []
    for index in reversed(range(len(product.before))):
        x = product.before[index].tokens
        if x.shape == (tokens, width) and not any(torch.equal(x, product.before[i].tokens) for i in found):
            found.append(index)
    return found[:_INPUTS]


def relative_error(live: Tensor, ours: Tensor) -> float:
    """Return the largest relative error over heads, after one positive scale for the whole layer."""
    scale = (live * ours).sum() / (ours * ours).sum().clamp_min(1e-30)
    if not torch.isfinite(scale) or scale <= 0:
        return float("inf")
    difference = (live - scale * ours).pow(2).sum((0, 2, 3)).sqrt()  # [H]
    return float((difference / live.pow(2).sum((0, 2, 3)).sqrt().clamp_min(1e-30)).max())
