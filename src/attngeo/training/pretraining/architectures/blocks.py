"""The parts that the architectures share, as functions of tensors: from projections and attention to the loss.

Weights are kept in float32 and multiplied in the type of x; norms, rotations and the loss are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F


class Setting(NamedTuple):
    """What the layers of a model have in common, besides their weights."""

    heads: int
    causal: bool
    rotation: Tensor | None = None  # [2, length, r/2], cos and sin of the angles; None: nothing rotates


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, computed in the type of x."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """Return LayerNorm(x), computed in float32 and returned in the type of x."""
    return F.layer_norm(x.float(), x.shape[-1:], gain, bias, epsilon).to(x.dtype)


def rms_norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """Return RMSNorm(x), computed in float32 and returned in the type of x."""
    return F.rms_norm(x.float(), x.shape[-1:], gain, epsilon).to(x.dtype)


def split_heads(qkv: Tensor, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v [rows, heads, length, r] of fused projections [rows, length, 3d]; q and k are rotated."""
    rows, length, width = qkv.shape
    q, k, v = qkv.view(rows, length, 3, setting.heads, width // (3 * setting.heads)).unbind(2)
    if setting.rotation is not None:
        q, k = rotate(q, setting.rotation), rotate(k, setting.rotation)  # [rows, length, heads, r]
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate queries or keys [rows, length, heads, r] by their positions; dimension i is paired with i + r/2."""
    cos, sin = rotation[:, : x.shape[1], None]  # [length, 1, r/2]
    first, second = x.float().chunk(2, -1)  # [rows, length, heads, r/2]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, self_bias: Tensor | None) -> Tensor:
    """Return what the heads read, side by side: [rows, length, d].

    q, k, v:   [rows, heads, length, r]
    self_bias: [], added to the logit of each token with itself; None: nothing is added
    """
    rows, heads, length, size = q.shape
    if self_bias is None:
        a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)  # [rows, heads, length, r]
    else:
        added = logit_bias(length, causal, self_bias).to(q.dtype)  # [length, length]
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
    return a.transpose(1, 2).reshape(rows, length, heads * size)


def logit_bias(length: int, causal: bool, self_bias: Tensor) -> Tensor:
    """Return what is added to the logits [length, length]: `self_bias` on the diagonal, −∞ on keys not yet seen."""
    added = torch.eye(length, device=self_bias.device) * self_bias
    if causal:
        hidden = torch.ones(length, length, dtype=torch.bool, device=self_bias.device).triu(1)
        added = added.masked_fill(hidden, -torch.inf)
    return added


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


# ---- the mean cross-entropy of an output layer, logits = h Wᵀ + b
#
# The logits [n, vocabulary] are the largest tensor of a training step. In training, the pass that computes the loss
# also writes their gradient, (softmax(logits) − one-hot(target))/n, so that no later pass has to read them.

LossAndGradients: TypeAlias = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]]


def mean_loss(h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy [] in nats of h [n, d] with targets [n]; weight: [vocabulary, d]."""
    return F.cross_entropy(linear(h, weight, bias).float(), targets)


def loss_and_gradients(
    h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return `mean_loss` and its gradients for h, weight and bias, each in the type of what it belongs to."""
    logits = linear(h, weight, bias).float()  # [n, vocabulary]
    total = logits.logsumexp(-1, keepdim=True)  # [n, 1], log Σ exp
    loss = (total - logits.gather(-1, targets.unsqueeze(-1))).mean()
    is_target = torch.arange(logits.shape[-1], device=h.device) == targets.unsqueeze(-1)  # [n, vocabulary]
    error = ((torch.exp(logits - total) - is_target.float()) / len(targets)).to(h.dtype)  # [n, vocabulary]
    of_bias = None if bias is None else error.sum(0, dtype=bias.dtype)  # [vocabulary]
    return loss, error @ weight.to(h.dtype), (error.mT @ h).to(weight.dtype), of_bias


class OutputLoss(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """`mean_loss` for training; `compute` is `loss_and_gradients`, compiled or not."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, compute: LossAndGradients
    ) -> Tensor:
        loss, *gradients = compute(h, weight, bias, targets)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *(part if part is None else part * grad for part in ctx.saved_tensors), None, None
