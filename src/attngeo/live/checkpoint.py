"""A model in training as a checkpoint: queries and keys as its layers multiply with them, wherever they are kept.

Sharded weights are put together by all processes, so all of them have to read the same tensors in the same order; one
tensor at a time, and none that is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attngeo.errors import LayoutError
from attngeo.weights.sources.checkpoint import Checkpoint, FloatArray, ReadRequest, TensorInfo
from attngeo.weights.sources.memory import unwrapped

# Names of tensors are what they are without these.
_TRANSPARENT = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer"}


@dataclass(frozen=True, eq=False)
class Place:
    """Where a weight is found each time it is read: shards, casts and parametrisations replace the tensor itself."""

    owner: nn.Module
    leaf: str
    adapter: nn.Module | None  # what adds a low-rank term to it
    unit: nn.Module | None  # the FullyShardedDataParallel whose flat parameter holds it

    @property
    def value(self) -> Tensor:
        return getattr(self.owner, self.leaf)


class LiveCheckpoint(Checkpoint):
    """The parameters of a module; `read` gives a float64 copy on their own device, low-rank adapters added.

    >>> for weights in open_layers(LiveCheckpoint(model)): ...   # doctest: +SKIP
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = bare(model)
        self.ref = type(self.model).__name__
        config: Any = getattr(self.model, "config", None)
        self.config = config.to_dict() if hasattr(config, "to_dict") else None
        self.modules: dict[str, nn.Module] = {}  # by path, wrappers taken out
        self.tensors: dict[str, TensorInfo] = {}
        self.sharded = False
        self._places: dict[str, Place] = {}
        for unit, path, top in _units(self.model):
            with _whole(unit):
                self._collect(path, top, unit, None)

    def read(self, want: ReadRequest) -> FloatArray:
        place = self._places[want.name]
        with _whole(place.unit):
            value = _effective(place, want.name)
        if want.rows is not None:
            value = torch.cat([value[start:stop] for start, stop in want.rows])
        return value  # type: ignore[no-any-return]  # a tensor: what is cut and scored from it stays on the device

    @property
    def plain(self) -> dict[str, Tensor]:
        """The parameters that layers multiply with as they stand, neither adapted nor made of others."""
        return {
            name: place.value.detach()
            for name, place in self._places.items()
            if place.adapter is None and place.leaf in place.owner._parameters
        }

    @property
    def device(self) -> torch.device:
        return next(iter(self._places.values())).value.device

    def module_of(self, path: str) -> nn.Module | None:
        """The module at `path`, or the nearest around it; None where only the whole model is."""
        while path and path not in self.modules:
            path = path.rpartition(".")[0]
        return self.modules[path] if path else None

    def _collect(self, path: str, module: nn.Module, unit: nn.Module | None, adapter: nn.Module | None) -> None:
        self.modules[path] = module
        if "lora_A" in module._parameters:
            adapter = module
        for leaf in (*module._parameters, *getattr(module, "parametrizations", ())):
            value = getattr(module, leaf)
            if value is None or leaf.startswith("lora_"):
                continue
            name = _join(path, leaf)
            self.sharded |= unit is not None or hasattr(value, "full_tensor")
            shape = tuple(getattr(value, "ds_shape", value.shape))
            self._places[name] = Place(module, leaf, adapter, unit)
            self.tensors[name] = TensorInfo(name, shape, str(value.dtype).removeprefix("torch."), self.ref)
        for name, child in module._modules.items():
            if child is None or _is_unit(child) or name == "parametrizations" or name.startswith("lora_"):
                continue
            self._collect(_join(path, name), child, unit, module if name == "base_layer" else None)


def bare(model: Any) -> Any:
    """The model itself, without what distributes, compiles or adapts it."""
    model = unwrapped(model)
    while hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        model = unwrapped(model.get_base_model())
    return model


def _units(model: nn.Module) -> Iterator[tuple[nn.Module | None, str, nn.Module]]:
    """The model, and every FullyShardedDataParallel inside it: only within one of them its weights have shapes."""
    if not _is_unit(model):
        yield None, "", model
    for name, module in model.named_modules():
        if _is_unit(module):
            words = [word for word in name.split(".") if word not in _TRANSPARENT]
            yield module, ".".join(words), module


def _is_unit(module: nn.Module) -> bool:
    return type(module).__name__ == "FullyShardedDataParallel"


def _whole(unit: nn.Module | None) -> AbstractContextManager[Any]:
    """While it lasts the weights of this unit, and of no other, are all here."""
    if unit is None:
        return nullcontext()
    from torch.distributed.fsdp import FullyShardedDataParallel

    summoned: AbstractContextManager[Any]
    summoned = FullyShardedDataParallel.summon_full_params(unit, recurse=False, writeback=False)
    return summoned


def _join(path: str, name: str) -> str:
    return path if name in _TRANSPARENT else f"{path}.{name}" if path else name


def _effective(place: Place, name: str) -> Tensor:
    """What is multiplied with: W, or W + Σ scale·B A where adapters are at work."""
    weight = _double(place.value, name)
    adapter = place.adapter
    if adapter is None or place.leaf != "weight" or getattr(adapter, "disable_adapters", False):
        return weight
    if not hasattr(adapter, "lora_A"):
        raise LayoutError(f"{name}: adapted by {type(adapter).__name__}; only low-rank adapters (LoRA) can be followed")
    if getattr(adapter, "merged", False):
        return weight
    for down, up, scale, magnitude in _terms(adapter):
        # Conv1D stores [in, out]
        flip = bool(getattr(adapter, "fan_in_fan_out", False))
        change = scale * (_double(up, name) @ _double(down, name))  # [out, in]
        if (change.T if flip else change).shape != weight.shape:
            raise LayoutError(f"{name}: shape {list(weight.shape)}, but its adapter adds {list(change.shape)}")
        weight = weight + (change.T if flip else change)
        if magnitude is not None:  # DoRA: every output keeps a norm of its own
            axis = 0 if flip else 1
            norms = torch.linalg.vector_norm(weight, dim=axis, keepdim=True)
            weight = weight * (_double(magnitude, name).reshape(norms.shape) / norms)
    return weight


def _terms(adapter: nn.Module) -> Iterator[tuple[Tensor, Tensor, float, Tensor | None]]:
    """A [rank, in], B [out, rank], scale and DoRA's magnitude of every adapter at work."""
    down, up, scaling = adapter.lora_A, adapter.lora_B, adapter.scaling
    if isinstance(down, Tensor):
        yield down, up, float(scaling), None
        return
    magnitudes = getattr(adapter, "lora_magnitude_vector", {})
    for name in adapter.active_adapters:
        if name in down:
            magnitude = magnitudes[name].weight if name in magnitudes else None
            yield down[name].weight, up[name].weight, float(scaling[name]), magnitude


def _double(value: Tensor, name: str) -> Tensor:
    """A float64 copy, whole."""
    partitioned = hasattr(value, "ds_shape")
    if not value.is_floating_point() or value.is_meta or partitioned:
        found = "has no values yet (meta device)" if value.is_meta else f"holds {value.dtype}"
        found = "is partitioned by DeepSpeed ZeRO-3" if partitioned else found
        raise LayoutError(f"{name}: {found}, a plain float parameter expected")
    value = value.detach()
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    if value.device.type == "mps":  # has no float64
        value = value.cpu()
    return value.to(torch.float64, copy=True)
