"""The weight that a layer of a live model multiplies with: its parameter, plus the terms of low-rank adapters."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attngeo.errors import LayoutError


def is_lora_layer(module: nn.Module) -> bool:
    """Return whether `module` keeps the factors of a low-rank adapter as parameters of its own."""
    return "lora_A" in module._parameters


def effective_weight(weight: Tensor, adapter: nn.Module | None, name: str) -> Tensor:
    """Return W, or W + Σ scale·B A over the active low-rank adapters, as a float64 copy on its own device.

    weight:  the parameter, whole or sharded
    adapter: the module that adapts it; None: no adapter
    name:    the name of the tensor, for error messages
    """
    base = double_copy(weight, name)
    if adapter is None or getattr(adapter, "disable_adapters", False):
        return base
    if not hasattr(adapter, "lora_A"):
        raise LayoutError(f"{name}: adapted by {type(adapter).__name__}; only low-rank adapters (LoRA) are supported")
    if getattr(adapter, "merged", False):
        return base
    value = base
    stored_in_out = bool(getattr(adapter, "fan_in_fan_out", False))  # Conv1D stores [in, out]
    for down, up, scale, magnitude in _low_rank_terms(adapter):
        change = scale * (double_copy(up, name) @ double_copy(down, name))  # [out, rank] @ [rank, in]
        change = change.T if stored_in_out else change
        if change.shape != value.shape:
            raise LayoutError(f"{name}: shape {list(value.shape)}, but its adapter adds {list(change.shape)}")
        value = value + change
        if magnitude is not None:  # DoRA: relative to the norms of W + scale·B A, without the adapters before it
            norms = torch.linalg.vector_norm(base + change, dim=0 if stored_in_out else 1, keepdim=True)
            value = value * (double_copy(magnitude, name).reshape(norms.shape) / norms)
    return value


def _low_rank_terms(adapter: nn.Module) -> Iterator[tuple[Tensor, Tensor, float, Tensor | None]]:
    """Yield A [rank, in], B [out, rank], the scale and DoRA's magnitude (or None) of every active adapter."""
    down, up, scaling = adapter.lora_A, adapter.lora_B, adapter.scaling
    if isinstance(down, Tensor):
        yield down, up, float(scaling), None
        return
    magnitudes = getattr(adapter, "lora_magnitude_vector", {})
    for name in adapter.active_adapters:
        if name in down:
            magnitude = magnitudes[name].weight if name in magnitudes else None
            yield down[name].weight, up[name].weight, float(scaling[name]), magnitude


def double_copy(value: Tensor, name: str) -> Tensor:
    """Return a float64 copy of the whole tensor; the shards of a DTensor are gathered from all processes."""
    partitioned = hasattr(value, "ds_shape")
    if not value.is_floating_point() or value.is_meta or partitioned:
        found = "has no values yet (meta device)" if value.is_meta else f"has dtype {value.dtype}"
        found = "is partitioned by DeepSpeed ZeRO-3" if partitioned else found
        raise LayoutError(f"{name}: {found}; expected an ordinary float parameter")
    value = value.detach()
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    if value.device.type == "mps":  # it has no float64
        value = value.cpu()
    return value.to(torch.float64, copy=True)
