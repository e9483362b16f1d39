"""One pass over calibration inputs: second moments of the head outputs, and gradients where a criterion needs them.

    C = mean over tokens of w_t z_t z_tᵀ,   w_t = 1/‖x_t‖²
    Γ = mean over tokens of ‖x_t‖² g_t g_tᵀ

z_t are the concatenated head outputs of a layer at token t, x_t the residual stream that the layer's output is added
to, and g_t the gradient of the loss at this output. Where the output projection has a bias, z_t ends with the
constant 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attngeo.applications.prune.criteria import OrganizedHeads, organized_heads
from attngeo.applications.prune.removal import PrunableLayer, fingerprint, prunable_layers, stacks_of
from attngeo.applications.prune.rows import (
    Batch,
    Objective,
    batched,
    objective_of,
    positions_mask,
    read_rows,
    row_losses,
    split_rows,
)
from attngeo.arrays import Floats
from attngeo.errors import InputError
from attngeo.io.archive import load_arrays, naming_file, save_arrays
from attngeo.live.frozen import frozen_model
from attngeo.live.load import LoadedModel, run_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STATISTICS = "prune statistics"  # the kind of the file
_TOKENS_PER_ENTRY = 0.25  # tokens that the refit needs at least, per entry of the concatenated head outputs


@dataclass(frozen=True, eq=False)
class LayerMoments:
    """C of one layer, on the rows to fit with and on the rows held out; [n, n], n = H·r (+ 1 with a bias)."""

    fit: Floats
    held_out: Floats
    tokens: int  # to fit with


@dataclass(frozen=True, eq=False)
class Statistics:
    """What the refit of a plan needs of the calibration inputs."""

    fingerprint: str  # of the model that was measured
    layers: dict[tuple[str, int], LayerMoments]  # by stack and layer
    held_out: tuple[Batch, ...]  # rows on which the loss after a refit is checked

    @property
    def tokens(self) -> int:
        """The number of tokens that the layers were fitted on, the smallest over the stacks."""
        return min(moments.tokens for moments in self.layers.values())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the statistics to an .npz file, moments in float32."""
        arrays: dict[str, NDArray[Any]] = {}
        for index, moments in enumerate(self.layers.values()):
            arrays[f"fit_{index}"] = moments.fit.astype(np.float32)
            arrays[f"held_out_{index}"] = moments.held_out.astype(np.float32)
        for index, batch in enumerate(self.held_out):
            for name, value in batch.inputs.items():
                arrays[f"input_{index}_{name}"] = (value.float() if value.is_floating_point() else value).cpu().numpy()
            if batch.targets is not None:
                arrays[f"targets_{index}"] = batch.targets.cpu().numpy()
        description = {
            "fingerprint": self.fingerprint,
            "layers": [[stack, layer, moments.tokens] for (stack, layer), moments in self.layers.items()],
            "batches": [sorted(batch.inputs) for batch in self.held_out],
        }
        return save_arrays(Path(path), STATISTICS, arrays, description)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Statistics:
        """Read what `save` wrote."""
        path = Path(path)
        arrays, about = load_arrays(path, STATISTICS)
        with naming_file(path):
            layers = {}
            for index, (stack, layer, tokens) in enumerate(about["layers"]):
                fit, held = (arrays[f"{name}_{index}"].astype(np.float64) for name in ("fit", "held_out"))
                layers[stack, layer] = LayerMoments(fit, held, tokens)
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            batches = tuple(
                Batch({name: tensors[f"input_{index}_{name}"] for name in names}, tensors.get(f"targets_{index}"))
                for index, names in enumerate(about["batches"])
            )
            return cls(about["fingerprint"], layers, batches)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What one pass over calibration inputs found; plans by any criterion, and the refit, use it."""

    model: PreTrainedModel
    name: str
    objective: Objective
    layers: tuple[PrunableLayer, ...]
    statistics: Statistics
    sensitivity: tuple[Floats, ...]  # Γ [d, d] of each layer; empty where no gradients were asked for
    rows: list[Batch]  # to fit with

    @cached_property
    def organized(self) -> list[OrganizedHeads]:
        """The heads of each stack, organised on a few rows that a second pass captures."""
        stacks = [[layer for layer in self.layers if layer.stack == stack] for stack in stacks_of(self.layers)]
        return [organized_heads(self.model, layers, self.rows) for layers in stacks]


def calibrate(
    loaded: LoadedModel,
    inputs: Any,
    *,
    tokens: int,
    window: int | None = None,
    target: str | None = None,
    seed: int = 0,
    gradients: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Return what the layers of a model do on calibration inputs; options as in `prune_plan`.

    gradients: also differentiate the loss on the rows to fit with, as "sensitivity" needs, at three times the time
    """
    model, objective = loaded.model, objective_of(loaded)
    layers = prunable_layers(model)
    rows = read_rows(inputs, loaded, objective, tokens=tokens, window=window, target=target, seed=seed)
    fit, held_out = split_rows(rows)
    passes = [(batch, True) for batch in batched(fit)] + [(batch, False) for batch in batched(held_out)]
    generator = torch.Generator().manual_seed(seed)
    recorders = [_Recorder(layer, gradients) for layer in layers]
    with frozen_model(model, parameter_gradients=True) as cleanup:
        for recorder in recorders:
            recorder.attach(model, cleanup)
        for done, (batch, fitting) in enumerate(passes, 1):
            batch = batch.to(model.device, model.dtype)
            for recorder in recorders:
                recorder.begin(batch, fitting)
            with torch.set_grad_enabled(fitting and gradients):
                output = run_model(model, batch.inputs)
                if fitting and gradients:
                    loss = row_losses(output, batch, generator).sum()
                    if not bool(torch.isfinite(loss)):
                        raise InputError("calibration inputs: the loss is not finite")
                    loss.backward()
            for layer, recorder in zip(layers, recorders, strict=True):
                if recorder.calls == 0:
                    raise InputError(f"calibration inputs: do not reach {layer.stack} layer {layer.layer}")
            if progress is not None:
                progress(done, len(passes))
    moments = {(one.layer.stack, one.layer.layer): one.result() for one in recorders}
    statistics = Statistics(fingerprint(model, layers), moments, tuple(batch for batch, fits in passes if not fits))
    needed = max(round(_TOKENS_PER_ENTRY * layer.heads.queries * layer.heads.size) for layer in layers)
    if statistics.tokens < needed:
        raise InputError(
            f"calibration inputs: {statistics.tokens} tokens to fit with, the refit needs at least {needed} "
            f"(about {needed * 4 // 3} in all, because a quarter is held out)"
        )
    gammas = [(one.gamma / max(1, one.tokens[0])).cpu().numpy() for one in recorders] if gradients else []
    return Calibration(model, loaded.name, objective, layers, statistics, tuple(gammas), fit)


class _Recorder:
    """The hooks of one layer and the sums they collect; index 0: of the rows to fit with, 1: of those held out."""

    def __init__(self, layer: PrunableLayer, gradients: bool) -> None:
        rows, width = layer.output_weight.shape
        size, device = rows + (layer.output.bias is not None), layer.output_weight.device
        self.layer, self.gradients = layer, gradients
        self.moments = torch.zeros(2, size, size, dtype=torch.float64, device=device)
        self.gamma = torch.zeros(width, width, dtype=torch.float64, device=device)
        self.tokens = [0, 0]

    def attach(self, model: nn.Module, cleanup: ExitStack) -> None:
        hooks = (
            self.layer.stream_module(model).register_forward_pre_hook(self._keep_stream, with_kwargs=True),
            self.layer.output.register_forward_hook(self._add),
        )
        for hook in hooks:
            cleanup.callback(hook.remove)

    def begin(self, batch: Batch, fitting: bool) -> None:
        self.part = 0 if fitting else 1
        self.calls = 0  # of the layer in the present batch; ALBERT uses a layer many times
        self.mask = batch.mask(encoder=self.layer.stack == "encoder")  # [B, T], 0: padding

    def result(self) -> LayerMoments:
        fit, held = (self.moments[part].cpu().numpy() / max(1, self.tokens[part]) for part in (0, 1))
        return LayerMoments(fit, held, self.tokens[0])

    def _keep_stream(self, _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.stream: Tensor = (arguments[0] if arguments else named["hidden_states"]).detach().float()  # [B, T, d]

    def _add(self, _: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        """Add the head outputs that the output projection reads, and later the gradient of what it returns."""
        z = arguments[0].detach().float()  # [B, T, H·r]
        norms = self.stream.norm(dim=-1)  # [B, T]
        mask = positions_mask(self.mask, z)  # [B, T]
        weight = mask / self.stream.square().sum(-1).clamp_min(1e-12)  # [B, T]
        if self.layer.output.bias is not None:
            z = torch.cat([z, torch.ones_like(z[..., :1])], -1)
        scaled = (z * weight.sqrt()[..., None]).flatten(0, 1)  # [N, n]
        self.moments[self.part] += scaled.T @ scaled
        if self.calls == 0:  # a layer that is used many times adds up its costs over the same tokens
            self.tokens[self.part] += int(mask.sum())
        self.calls += 1
        if not self.gradients or self.part:
            return output
        if not output.requires_grad:  # the first layer: nothing before it is differentiated
            output = output.detach().requires_grad_()

        def add_gradient(gradient: Tensor) -> None:
            weighted = (gradient.float() * norms[..., None]).flatten(0, 1)  # [N, d]
            self.gamma += weighted.T @ weighted

        output.register_hook(add_gradient)
        return output
