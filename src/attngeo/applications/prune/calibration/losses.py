"""The loss of each row of a batch, and the mean loss of a model over rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attngeo.applications.prune.calibration.objective import IGNORED
from attngeo.applications.prune.calibration.rows import Batch, positions_mask
from attngeo.errors import InputError
from attngeo.live.frozen import frozen_model
from attngeo.live.load import run_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def row_losses(output: Any, batch: Batch, generator: torch.Generator) -> Tensor:
    """Return one loss per row, [B]: the mean cross-entropy of its targets.

    Without targets, the loss is the product of the model's output with a random vector, whose gradients show how
    strongly the output depends on each part of the model.
    """
    if batch.targets is not None:
        return token_losses(output.logits, batch.targets)
    values = main_output(output)  # [B, …]
    read = _read(values, batch)  # [B, T, 1] or [B, …]
    direction = torch.randn(values.shape, generator=generator).to(values)
    return (values * direction * read).flatten(1).sum(1) / read.expand_as(values).flatten(1).sum(1).clamp_min(1).sqrt()


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of each row, [B]. logits: [B, T, V], targets: [B, T]."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED)
    counts = (targets != IGNORED).sum(1).clamp_min(1)  # [B]
    return losses.view(targets.shape).sum(1) / counts


def main_output(output: Any) -> Tensor:
    """Return what a model without a language-model head computes: logits, or the last hidden state."""
    found = output.get("logits") if output.get("logits") is not None else output.get("last_hidden_state")
    return output[0] if found is None else found


def _read(values: Tensor, batch: Batch) -> Tensor:
    """Return 1 for the positions of an output [B, T, d] that are no padding, 0 for the others; all count in [B, n]."""
    if values.dim() != 3:
        return torch.ones_like(values)
    return positions_mask(batch.mask(), values).to(values)[..., None]  # [B, T, 1]


def mean_loss(model: PreTrainedModel, batches: Sequence[Batch], reference: Sequence[Tensor] | None = None) -> float:
    """Return the mean loss of a model over all predicted tokens.

    reference: for batches without targets, the outputs of the full model; the loss is then the squared difference from
               them, divided by their square
    """
    total = count = 0.0
    with frozen_model(model):
        for index, batch in enumerate(batches):
            batch = batch.to(model.device, model.dtype)
            output = run_model(model, batch.inputs)
            if batch.targets is None:
                assert reference is not None
                full = reference[index].to(model.device).float()
                read = _read(full, batch)  # [B, T, 1] or [B, …]
                total += float(((main_output(output).float() - full).square() * read).sum())
                count += float((full.square() * read).sum())
            else:
                predicted = batch.targets != IGNORED  # [B, T]
                logits, expected = output.logits[predicted].float(), batch.targets[predicted]  # [tokens, V], [tokens]
                if bool(((expected < 0) | (expected >= logits.shape[1])).any()):
                    raise InputError(f"targets outside of the vocabulary, which has {logits.shape[1]:,} tokens")
                total += float(F.cross_entropy(logits, expected, reduction="sum"))
                count += int(predicted.sum())
    return total / max(count, 1e-30)


def reference_outputs(model: PreTrainedModel, batches: Sequence[Batch]) -> list[Tensor] | None:
    """Return the outputs of the full model for `mean_loss`; None where the batches have targets."""
    if all(batch.targets is not None for batch in batches):
        return None
    with frozen_model(model):
        return [main_output(run_model(model, batch.to(model.device, model.dtype).inputs)).cpu() for batch in batches]
