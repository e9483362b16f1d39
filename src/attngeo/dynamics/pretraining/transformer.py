"""BERT's computation as functions of tensors: embedding, layer, output head, loss.

Post-norm, no dropout. Weights are kept in float32 and multiplied in the type of x; normalisation, embedding and loss
are computed in float32. The weights of a layer are an argument, so that one compilation serves all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_EPSILON = 1e-12  # of LayerNorm


def embed(ids: Tensor, weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the embeddings [rows, length, d] of token ids [rows, length]."""
    word, position, token_type, gain, bias = weights
    x = F.embedding(ids, word) + (position[: ids.shape[1]] + token_type)  # [rows, length, d]
    return F.layer_norm(x, x.shape[-1:], gain, bias, _EPSILON).to(dtype)


def layer(x: Tensor, weights: Sequence[Tensor], heads: int, causal: bool) -> Tensor:
    """Return the output [rows, length, d] of one layer for its input x [rows, length, d]."""
    (wq, bq, wk, bk, wv, bv, wo, bo, g1, b1, w_up, b_up, w_down, b_down, g2, b2) = weights
    rows, length, d = x.shape
    # One product for all three projections: x is read once.
    qkv = linear(x, torch.cat([wq, wk, wv]), torch.cat([bq, bk, bv]))  # [rows, length, 3d]
    q, k, v = qkv.view(rows, length, 3, heads, d // heads).permute(2, 0, 3, 1, 4).unbind(0)  # [rows, heads, length, r]
    a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)  # [rows, heads, length, r]
    a = a.transpose(1, 2).reshape(rows, length, d)
    x = _add_and_norm(x, linear(a, wo, bo), g1, b1)
    return _add_and_norm(x, linear(F.gelu(linear(x, w_up, b_up)), w_down, b_down), g2, b2)


def logits_of(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return the logits [n, vocabulary] at n positions x [n, d]."""
    dense, dense_bias, gain, bias, word, word_bias = weights
    h = F.gelu(linear(x, dense, dense_bias))  # [n, d]
    h = F.layer_norm(h.float(), h.shape[-1:], gain, bias, _EPSILON).to(x.dtype)
    return linear(h, word, word_bias)


def loss_of(x: Tensor, targets: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return the mean cross-entropy in nats at n positions x [n, d] with targets [n]."""
    return F.cross_entropy(logits_of(x, weights).float(), targets)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x Wᵀ + b, computed in the type of x."""
    return F.linear(x, weight.to(x.dtype), bias.to(x.dtype))


def _add_and_norm(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Return LayerNorm(x + y), computed in float32 and returned in the type of x."""
    return F.layer_norm(x.float() + y.float(), x.shape[-1:], gain, bias, _EPSILON).to(x.dtype)


class SelectRows(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """Rows of x [m, d] at distinct positions [n], as [n, d].

    Its gradient is a plain copy; the gradient of ordinary indexing would add atomically, in no fixed order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor) -> Tensor:
        ctx.save_for_backward(positions)
        ctx.rows = x.shape[0]
        return x.index_select(0, positions)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (positions,) = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, grad.shape[1]).index_copy_(0, positions, grad), None
