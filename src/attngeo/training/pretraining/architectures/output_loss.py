"""The mean cross-entropy of an output layer, logits = h Wᵀ + b.

The logits [n, vocabulary] are the largest tensor of a training step. In training, the pass that computes the loss also
writes their gradient, (softmax(logits) − one-hot(target))/n, so that no later pass has to read them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from attngeo.training.pretraining.architectures.blocks import linear

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
