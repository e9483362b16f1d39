"""Checkpoints in memory: a torch module, a state dict, or the tensors of a loaded pickle."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.errors import SourceError, first_line
from attngeo.weights.sources.byte_file import nonfinite_error
from attngeo.weights.sources.checkpoint import (
    Checkpoint,
    FloatArray,
    ReadRequest,
    TensorInfo,
    diffusers_config,
    without_wrappers,
)
from attngeo.weights.sources.numbers import (
    all_finite,
    may_hold_attention,
    read_with_scale,
    refusal,
    refuse_adapter,
    refuse_packed,
    refuse_unreadable,
)

if TYPE_CHECKING:
    import torch

# Classes that wrap a whole module, and the attribute that holds it.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "DeepSpeedEngine": "module",
    "OptimizedModule": "_orig_mod",
}


class MemoryCheckpoint(Checkpoint):
    """Torch tensors or arrays by name; a read copies only the rows that are asked for."""

    def __init__(
        self,
        ref: str,
        config: Mapping[str, Any] | None,
        values: Mapping[str, Any],
        files: Mapping[str, str] | None = None,  # tensor name → name of the file it was loaded from
    ) -> None:
        self.ref = ref
        self.config = config
        self.tensors = {name: _info(name, value, (files or {}).get(name, ref)) for name, value in values.items()}
        self._values = values

    def read(self, request: ReadRequest) -> FloatArray:
        return read_with_scale(self, request, self._float32)

    def check_readable(self, name: str) -> None:
        self._readable(name)

    def _readable(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise SourceError(f"{self.ref}: has no tensor {name!r}")
        if "float" not in info.dtype:
            raise SourceError(f"{info.file}: tensor {name!r} {refusal(info.dtype, self.config)}")
        return info

    def _float32(self, request: ReadRequest) -> FloatArray:
        """Return the values of a request, all of them finite, before FP8 scales are applied."""
        info = self._readable(request.name)
        value = self._values[info.name]
        out = np.empty(request.shape_in(info), np.float32)
        parts = [(value, out, 0)] if request.rows is None else []  # source, target, row in the tensor
        done = 0
        for start, stop in request.rows or ():
            parts.append((value[start:stop], out[done : done + stop - start], start))
            done += stop - start
        for source, target, row in parts:
            _copy(source, target, info)
            if not all_finite(target):
                raise nonfinite_error(info, target.reshape(-1), row * math.prod(info.shape[1:]))
        return out


def unwrapped(module: Any) -> Any:
    """Return a torch module without the wrappers that distribute or compile it."""
    while inner := _WRAPPERS.get(type(module).__name__):
        module = getattr(module, inner)
    return module


def transformer_inside(module: Any) -> Any:
    """Return the one model of transformers or diffusers inside a module without a config, such as a LightningModule.

    Returns `module` itself where it has a config, where there is not exactly one such model inside it, or where
    weights outside that model may be attention too.
    """
    module = unwrapped(module)
    if _has_config(module):
        return module
    inside = list(_configured(module))
    if len(inside) != 1:
        return module
    own = {id(weight) for weight in inside[0].parameters()}
    others = (name for name, weight in module.named_parameters() if id(weight) not in own)
    return module if any(map(may_hold_attention, others)) else unwrapped(inside[0])


def _has_config(module: Any) -> bool:
    return hasattr(getattr(module, "config", None), "to_dict") or diffusers_config(module) is not None


def _configured(module: Any) -> Iterator[Any]:
    """Yield the outermost modules inside `module` that have a transformers config."""
    for child in module.children():
        if _has_config(child):
            yield child
        else:
            yield from _configured(child)


def module_checkpoint(module: torch.nn.Module, config: Mapping[str, Any] | None) -> MemoryCheckpoint:
    """Return a torch module as a checkpoint: its state dict by reference, its own config, its class name as `ref`."""
    module = transformer_inside(module) if config is None else unwrapped(module)
    refuse_unreadable(module)
    values = dict(module.state_dict())
    for prefix, part in module.named_modules():
        # A parametrised weight is stored as the inputs of a function; the checkpoint offers what the model uses.
        for name in getattr(part, "parametrizations", {}):
            values[f"{prefix}.{name}".lstrip(".")] = getattr(part, name).detach()
    own: Any = getattr(module, "config", None)
    if config is None:
        config = own.to_dict() if hasattr(own, "to_dict") else diffusers_config(module)
    tensors = {name: value for name, value in values.items() if hasattr(value, "shape") and hasattr(value, "dtype")}
    for name in tensors:
        if ".base_layer." in name and may_hold_attention(name):
            adapted = name.partition(".base_layer.")[0]
            raise SourceError(f"{type(module).__name__}: {adapted} has an adapter; merge it by merge_and_unload()")
    return MemoryCheckpoint(type(module).__name__, config, as_saved(module, without_wrappers(tensors)))


def as_saved(module: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tensors of a module as transformers saves them: what is known of layouts is known of saved models.

    Some model types have other names in memory, and some other orders of the dimensions of a head. Large tensors that
    are not attention stay as they are, because converting them, such as experts, would copy them.
    """
    loading = sys.modules.get("transformers.core_model_loading")  # whoever has a model of transformers has imported it
    revert = getattr(loading, "revert_weight_conversion", None)
    if revert is None or not hasattr(getattr(module, "config", None), "to_dict"):
        return tensors
    read = {name: value for name, value in tensors.items() if len(value.shape) < 2 or may_hold_attention(name)}
    try:
        saved: Mapping[str, Any] = revert(module, read)
    except Exception:  # of any kind: transformers cannot save this model, because it is quantised or has lost parts
        return tensors
    return {**{name: value for name, value in tensors.items() if name not in read}, **saved}


def mapping_checkpoint(values: Mapping[str, Any], config: Mapping[str, Any] | None) -> MemoryCheckpoint:
    """Return a state dict, of torch tensors or NumPy arrays (also bfloat16 of ml_dtypes), as a checkpoint."""
    if not values:
        raise SourceError("state dict: is empty, expected tensors by name")
    names = [name for name in values if isinstance(name, str)]
    refuse_adapter("state dict", names)
    refuse_packed("state dict", names)
    for name, value in values.items():
        if not isinstance(name, str) or not hasattr(value, "shape") or not hasattr(value, "dtype"):
            raise SourceError(f"state dict: {name!r} is a {type(value).__name__}, expected a tensor or an array")
    return MemoryCheckpoint("state dict", config, without_wrappers(values))


def _info(name: str, value: Any, file: str) -> TensorInfo:
    return TensorInfo(name, tuple(int(n) for n in value.shape), str(value.dtype).removeprefix("torch."), file)


def _copy(value: Any, out: FloatArray, info: TensorInfo) -> None:
    """Copy `value` into `out` and convert it to float32; a torch tensor may be on any device."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            torch.from_numpy(out).copy_(value.detach())
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(out, np.asarray(value), casting="unsafe")
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        problem = f"cannot be read as float32 ({first_line(error)})"
        raise SourceError(f"{info.file}: tensor {info.name!r} {problem}") from error
