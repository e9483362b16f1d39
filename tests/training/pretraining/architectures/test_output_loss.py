"""The loss of the output layer in training, and its gradients, are those of torch's cross-entropy."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.nn import functional as F

from attngeo.training.pretraining.model import OutputLoss, loss_and_gradients, mean_loss


def drawn(bias: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return features [50, 16], weight [90, 16], bias [90] and targets [50]; logits are of order ten."""
    draw = torch.Generator().manual_seed(3)
    h, weight, b = (torch.randn(*shape, generator=draw) for shape in ((50, 16), (90, 16), (90,)))
    targets = torch.randint(90, (50,), generator=draw)
    return (3 * h).to(dtype), weight, b if bias else None, targets


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_cross_entropy(bias: bool) -> None:
    h, weight, b, targets = drawn(bias, torch.float32)
    held = [part.double().requires_grad_() for part in (h, weight, b) if part is not None]
    expected = F.cross_entropy(F.linear(*held), targets)
    (2.5 * expected).backward()
    mine = [part.detach().float().requires_grad_() for part in held]
    loss = OutputLoss.apply(*(mine if bias else [*mine, None]), targets, loss_and_gradients)
    (2.5 * loss).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert expected.item() > 1
    for wanted, got in zip(held, mine, strict=True):
        assert got.grad.dtype == got.dtype
        assert float((got.grad - wanted.grad).norm() / wanted.grad.norm()) < 1e-6  # computed in float32


def test_features_in_bfloat16_give_gradients_of_weights_in_float32() -> None:
    h, weight, bias, targets = drawn(True, torch.bfloat16)
    loss, of_h, of_weight, of_bias = loss_and_gradients(h, weight, bias, targets)
    _, *exact = loss_and_gradients(h.float(), weight.bfloat16().float(), bias, targets)
    assert float(loss) == pytest.approx(float(mean_loss(h, weight, bias, targets)), rel=1e-6)
    assert of_bias is not None
    assert (of_h.dtype, of_weight.dtype, of_bias.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    for got, wanted in zip((of_h, of_weight, of_bias), exact, strict=True):
        assert wanted is not None
        assert float((got.float() - wanted).norm() / wanted.norm()) < 0.02
