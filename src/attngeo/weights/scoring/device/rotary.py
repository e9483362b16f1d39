"""Averages over all offsets under rotary position embedding, of many forms at once, from products at hand.

Indices are kept on the device: copying them there would wait for everything that it was asked to compute before.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.device.products import Side
from attngeo.weights.scoring.rotary.average import (
    RotaryAverage,
    RotarySums,
    commuting_part,
    fixed_sums,
    rows_of_pairs,
    turning_sums,
)
from attngeo.weights.scoring.symmetry import squared_norm, trace_of_square

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as Device


def head_average(query: Side, key: Side, cross: Tensor, rotary: RotaryPairs) -> RotaryAverage[Tensor]:
    """Return the averages of heads, `[B, m]`.

    For one head the averaged Gram matrix is diagonal on rotating dimensions, so its norms are weighted sums of squares.

    query, key: [B, m, r, d_q], [B, 1, r, d_k]
    cross:      [B, m, r, r], W_qᵀ W_k
    """
    of_query, of_key, of_both = (
        commuting_part(within_pairs(z, rotary, 1)) for z in (query.gram, key.gram, cross)
    )  # [B, m, n, 2, 2]
    scale = rotary.factor**4
    norm = scale * squared_norm(of_query, of_key).sum(-1)
    sums = RotarySums(
        scale * trace_of_square(of_both).sum(-1),
        norm,
        scale * _weighted_squares(query.w, of_key, rotary),
        scale * _weighted_squares(key.w, of_query, rotary),
        norm,
    )
    if len(rotary.fixed(query.w.shape[-2])):
        sums = sums + fixed_sums(query.w.unsqueeze(2), key.w.unsqueeze(2), rotary)
    return sums.average()


def layer_average(query: Side, key: Side, cross: Tensor, rotary: RotaryPairs, groups: int) -> RotaryAverage[Tensor]:
    """Return the averages of layer forms, `[L, 1]`.

    query, key: [L, 1, G r, d_q], [L, 1, G r, d_k]
    cross:      [L, 1, G r, G r], W_qᵀ W_k
    groups:     G
    """
    index = _rows(rotary, groups, query.w.shape[-2] // groups, query.w.device)  # [n, 2G]
    w_query, w_key = (side.w.index_select(-2, index.flatten()).unflatten(-2, index.shape) for side in (query, key))
    products = [within_pairs(z, rotary, groups) for z in (query.gram, key.gram, cross)]
    sums = turning_sums(w_query, w_key, rotary.factor, products)
    if len(rotary.fixed(query.w.shape[-2] // groups)):
        w_query, w_key = (side.w.unflatten(-2, (groups, -1)) for side in (query, key))  # [L, 1, G, r, d]
        sums = sums + fixed_sums(w_query, w_key, rotary)
    return sums.average()


def within_pairs(product: Tensor, rotary: RotaryPairs, groups: int) -> Tensor:
    """Return the blocks `[..., n, 2G, 2G]` of products `[..., G r, G r]` that belong to one rotating pair each."""
    size = product.shape[-1]
    rows = _rows(rotary, groups, size // groups, product.device)  # [n, 2G]
    index = size * rows[:, :, None] + rows[:, None, :]  # [n, 2G, 2G]
    return product.flatten(-2).index_select(-1, index.flatten()).unflatten(-1, index.shape)


def _weighted_squares(w: Tensor, averages: Tensor, rotary: RotaryPairs) -> Tensor:
    """Return Σ_a p_a w_aj² over rotating dimensions, `[B, m, d]`, p the diagonal of averages `[B, m, n, 2, 2]`."""
    rows = _rows(rotary, 1, w.shape[-2], w.device)
    weights = averages.new_zeros(*averages.shape[:2], w.shape[-2])  # [B, m, r]
    weights.index_copy_(-1, rows.flatten(), averages.diagonal(0, -2, -1).flatten(-2))
    if w.shape[1] == 1:
        return weights @ (w * w)[:, 0]
    return (weights.unsqueeze(-2) @ (w * w)).squeeze(-2)


@lru_cache(maxsize=16)
def _rows(rotary: RotaryPairs, groups: int, r: int, device: Device) -> Tensor:
    """Return where the dimensions of each rotating pair stand among those of all key heads, `[n, 2G]`."""
    import torch

    return torch.from_numpy(rows_of_pairs(rotary.turning, groups, r)).to(device)
