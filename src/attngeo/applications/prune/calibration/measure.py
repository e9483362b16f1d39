"""`measure`: one pass over calibration rows that collects what criteria and refit need of every layer.

On the rows to fit with the loss is also differentiated. A gate ξ_h multiplies the output of head h in one row; its
gradient at ξ = 1 is Σ_t z_{t,h} · ∂L/∂z_{t,h}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attngeo.applications.prune.calibration.losses import row_losses
from attngeo.applications.prune.calibration.rows import Batch, batched, positions_mask
from attngeo.applications.prune.calibration.statistics import LayerMoments
from attngeo.applications.prune.removal.layers import PrunableLayer
from attngeo.arrays import Floats
from attngeo.errors import InputError
from attngeo.live.frozen import frozen_model
from attngeo.live.load import run_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class LayerMeasurement:
    """What one layer did on the calibration rows. H query heads of size r, model width d."""

    layer: PrunableLayer
    moments: LayerMoments
    weight: Floats  # [H·r, d], W_o
    gate_magnitude: Floats  # [H], E|∂L/∂ξ_h| over the rows
    gate_fisher: Floats  # [H], E(∂L/∂ξ_h)²
    gamma: Floats  # [d, d], E[g gᵀ] of the gradients at the layer's output
    output_norm: Floats  # [H], E‖z_h W_h‖
    sensitivity: Floats  # [d, d], E[‖x‖² g gᵀ], x the residual stream: for changes relative to the stream, as in C

    @property
    def biased(self) -> bool:
        return len(self.moments.fit) > len(self.weight)


def measure(
    model: PreTrainedModel,
    layers: Sequence[PrunableLayer],
    fit: Sequence[Batch],
    held_out: Sequence[Batch],
    *,
    gradients: bool = True,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[LayerMeasurement]:
    """Run `model` on the rows and return what each layer did; the state of the model is restored.

    gradients: False leaves the figures of gates and gradients at 0, at a third of the time
    """
    passes = [(batch, True) for batch in batched(fit)] + [(batch, False) for batch in batched(held_out)]
    generator = torch.Generator().manual_seed(seed)
    recorders = [_Recorder(layer) for layer in layers]
    with frozen_model(model, parameter_gradients=True) as cleanup:
        for recorder in recorders:
            recorder.attach(model, cleanup)
        for done, (batch, fitting) in enumerate(passes, 1):
            batch = batch.to(model.device, model.dtype)
            for recorder in recorders:
                recorder.begin(batch, fitting, gradients)
            with torch.set_grad_enabled(fitting and gradients):
                output = run_model(model, batch.inputs)
                if fitting and gradients:
                    loss = row_losses(output, batch, generator).sum()
                    if not bool(torch.isfinite(loss)):
                        raise InputError("calibration inputs: the loss is not finite")
                    loss.backward()
            for recorder in recorders:
                recorder.finish(batch.rows)
            if progress is not None:
                progress(done, len(passes))
    return [recorder.result() for recorder in recorders]


@dataclass(eq=False)
class _Recorder:
    """The hooks of one layer and the sums they collect."""

    layer: PrunableLayer
    tokens: list[int] = field(default_factory=lambda: [0, 0])  # to fit with, held out
    rows: int = 0
    fitting: bool = True
    gradients: bool = True
    calls: int = 0  # of the layer in the present batch; ALBERT uses a layer many times
    stream: Tensor | None = None  # [B, T, d], the residual stream before the present call
    mask: Tensor | None = None  # [B, T], 0: padding

    def __post_init__(self) -> None:
        weight = self.layer.output_weight.detach().double()  # [H·r, d]
        size, device = len(weight) + (self.layer.output.bias is not None), weight.device
        heads, r, d = self.layer.heads.queries, self.layer.heads.size, weight.shape[1]
        zeros: Callable[..., Tensor] = lambda *shape: torch.zeros(*shape, dtype=torch.float64, device=device)  # noqa: E731
        self.weight = weight
        self.moments = [zeros(size, size), zeros(size, size)]
        self.gates = zeros(heads)  # of one row after the other, see `finish`
        self.magnitude, self.fisher, self.norms = zeros(heads), zeros(heads), zeros(heads)
        self.gamma, self.sensitivity = zeros(d, d), zeros(d, d)
        by_head = weight.view(heads, r, d).float()
        self.grams = by_head @ by_head.mT  # [H, r, r], W_h W_hᵀ

    def attach(self, model: nn.Module, cleanup: ExitStack) -> None:
        stream = self.layer.stream_module(model)
        hooks = (
            stream.register_forward_pre_hook(self._keep_stream, with_kwargs=True),
            self.layer.output.register_forward_pre_hook(self._before_output),
            self.layer.output.register_forward_hook(self._after_output),
        )
        for hook in hooks:
            cleanup.callback(hook.remove)

    def begin(self, batch: Batch, fitting: bool, gradients: bool) -> None:
        self.fitting, self.gradients, self.calls = fitting, gradients and fitting, 0
        self.mask = batch.mask(encoder=self.layer.stack == "encoder")
        self.gates = torch.zeros(batch.rows, self.layer.heads.queries, dtype=torch.float64, device=self.weight.device)

    def finish(self, rows: int) -> None:
        """Add the gates of the batch, now that the gradients of all calls are known."""
        if self.calls == 0:
            raise InputError(f"calibration inputs: do not reach {self.layer.stack} layer {self.layer.layer}")
        if self.gradients:
            self.magnitude += self.gates.abs().sum(0)
            self.fisher += self.gates.square().sum(0)
            self.rows += rows

    def result(self) -> LayerMeasurement:
        fit, held = (moments / max(1, tokens) for moments, tokens in zip(self.moments, self.tokens, strict=True))
        rows, tokens = max(1, self.rows), max(1, self.tokens[0])
        arrays = (
            self.weight, self.magnitude / rows, self.fisher / rows, self.gamma / tokens, self.norms / tokens,
            self.sensitivity / tokens,
        )  # fmt: skip
        moments = LayerMoments(fit.cpu().numpy(), held.cpu().numpy(), self.tokens[0])
        return LayerMeasurement(self.layer, moments, *(array.cpu().numpy() for array in arrays))

    def _keep_stream(self, _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        stream = arguments[0] if arguments else named["hidden_states"]
        self.stream = stream.detach()

    def _before_output(self, _: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        z = arguments[0]  # [B, T, H·r]
        if self.gradients and not z.requires_grad:  # the first layer: what comes before has no parameter to train
            z = z.detach().requires_grad_()
        self._add_moments(z.detach())
        if self.gradients:
            z.register_hook(lambda gradient: self._add_gates(z.detach(), gradient))
        self.calls += 1
        return (z, *arguments[1:])

    def _after_output(self, _: nn.Module, __: Any, output: Tensor) -> None:
        if self.gradients:
            assert self.stream is not None
            norms = self.stream.float().norm(dim=-1)  # [B, T], of this call
            output.register_hook(lambda gradient: self._add_gamma(gradient, norms))

    def _add_moments(self, z: Tensor) -> None:
        assert self.stream is not None
        mask = positions_mask(self.mask, z)  # [B, T]
        weight = mask / self.stream.float().square().sum(-1).clamp_min(1e-12)  # [B, T]
        z = z.float()
        if self.fitting:
            by_head = z.unflatten(-1, (self.layer.heads.queries, -1)).flatten(0, 1)  # [N, H, r]
            squares = torch.einsum("nhr,hrs,nhs->nh", by_head, self.grams, by_head).clamp_min(0)  # ‖z_h W_h‖²
            self.norms += (squares.sqrt() * mask.flatten()[:, None]).sum(0)
        if self.layer.output.bias is not None:
            z = torch.cat([z, torch.ones_like(z[..., :1])], -1)
        scaled = (z * weight.sqrt()[..., None]).flatten(0, 1)  # [N, n]
        part = 0 if self.fitting else 1
        self.moments[part] += scaled.T @ scaled
        if self.calls == 0:  # a layer that is used many times adds up its costs over the same tokens
            self.tokens[part] += int(mask.sum())

    def _add_gates(self, z: Tensor, gradient: Tensor) -> None:
        products = (z.float() * gradient.float()).unflatten(-1, (self.layer.heads.queries, -1))  # [B, T, H, r]
        self.gates += products.sum((1, 3))

    def _add_gamma(self, gradient: Tensor, norms: Tensor) -> None:
        flat = gradient.detach().float().flatten(0, 1)  # [N, d]
        self.gamma += flat.T @ flat
        scaled = flat * norms.flatten()[:, None]
        self.sensitivity += scaled.T @ scaled
