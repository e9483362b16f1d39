"""`LiveCheckpoint`: a model in memory, also while it is trained, as a checkpoint that scoring can read.

It returns the weights that the layers multiply with, wherever they are kept. Reading sharded weights gathers them from
all processes, so all processes have to read the same tensors in the same order. They are gathered one at a time, and
only those that are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attngeo.errors import LayoutError, SourceError
from attngeo.weights.sources.checkpoint import (
    WRAPPER_WORDS,
    Checkpoint,
    FloatArray,
    ReadRequest,
    TensorInfo,
    diffusers_config,
)
from attngeo.weights.sources.memory import as_saved, transformer_inside, unwrapped
from attngeo.weights.sources.numbers import refuse_unreadable

# Modules that wrap another module; they are left out of tensor names.
_WRAPPER_NAMES = WRAPPER_WORDS | {"base_layer"}


@dataclass(frozen=True, eq=False)
class _Weight:
    """A weight, looked up each time it is read: sharding, casts and parametrisations replace the tensor itself."""

    owner: nn.Module
    leaf: str
    adapter: nn.Module | None  # the module that adds a low-rank term to it

    @property
    def value(self) -> Tensor:
        return getattr(self.owner, self.leaf)


@dataclass(frozen=True)
class SavedTensor:
    """One tensor as transformers saves it.

    Some model types have other names in memory, other orders of the dimensions of a head, or queries, keys and values
    that are saved as one tensor. What is known of layouts is known of saved models.
    """

    shape: tuple[int, ...]
    sources: tuple[str, ...]  # names of the weights in memory that are needed to make it
    converted: bool = False  # True: `as_saved` of the sources computes it; False: it is its one source


class LiveCheckpoint(Checkpoint):
    """The weights of a module, low-rank adapters included.

    `read` returns float32 NumPy arrays, as for every checkpoint. `tensor` returns float64 tensors on the device of the
    weights, for measurements during training:

    >>> from transformers import AutoModel
    >>> from attngeo.weights.layout.layers import open_layers
    >>> checkpoint = LiveCheckpoint(AutoModel.from_pretrained(attngeo.bundled("encoder")))
    >>> [layer.query.dtype for layer in open_layers(checkpoint).read_with(checkpoint.tensor)]
    [torch.float64, torch.float64, torch.float64, torch.float64]
    """

    def __init__(self, model: nn.Module, *, saved_names: bool = False) -> None:
        """saved_names: name and order the weights as transformers saves them, which is how scoring knows layouts"""
        self.model = base_model(model)
        refuse_unreadable(self.model)
        self.ref = type(self.model).__name__
        config: Any = getattr(self.model, "config", None)
        self.config = config.to_dict() if hasattr(config, "to_dict") else diffusers_config(self.model)
        self.modules: dict[str, nn.Module] = {}  # by path, wrappers left out
        self.tensors: dict[str, TensorInfo] = {}
        self.sharded = False
        self._weights: dict[str, _Weight] = {}
        self._collect("", self.model, None)
        shapes = {name: info.shape for name, info in self.tensors.items()}
        if saved_names:
            self._saved = saved_tensors(self.model, shapes)
        else:
            self._saved = {name: SavedTensor(shape, (name,)) for name, shape in shapes.items()}
        self.tensors = {
            name: TensorInfo(name, saved.shape, self.tensors[saved.sources[0]].dtype, self.ref)
            for name, saved in self._saved.items()
        }

    def read(self, request: ReadRequest) -> FloatArray:
        values: FloatArray = np.ascontiguousarray(self.tensor(request).to("cpu", torch.float32).numpy())
        if not np.isfinite(values).all():
            raise SourceError(f"{self.ref}: tensor {request.name!r} contains NaN or infinity; finite weights expected")
        return values

    def tensor(self, request: ReadRequest) -> Tensor:
        """Return the requested rows as a float64 tensor on the device of the weight; the caller owns it."""
        saved = self._saved[request.name]
        values = {name: self._value(name) for name in saved.sources}
        value = as_saved(self.model, values)[request.name] if saved.converted else values[saved.sources[0]]
        if request.rows is not None:
            value = torch.cat([value[start:stop] for start, stop in request.rows])
        return value

    @property
    def plain_parameters(self) -> dict[str, Tensor]:
        """Return the parameters that layers multiply with directly: without adapters and parametrisations."""
        return {
            name: weight.value.detach()
            for name, weight in self._weights.items()
            if weight.adapter is None and weight.leaf in weight.owner._parameters
        }

    @property
    def device(self) -> torch.device:
        return next(iter(self._weights.values())).value.device

    def module_of(self, tensors: Iterable[str]) -> nn.Module | None:
        """Return the innermost module around the projections in `tensors`; None where that is the whole model."""
        paths = [_around(name) for tensor in tensors for name in self._saved[tensor].sources]
        path = paths[0]
        while path and not (path in self.modules and all(f"{other}.".startswith(f"{path}.") for other in paths)):
            path = path.rpartition(".")[0]
        return self.modules[path] if path else None

    def _value(self, name: str) -> Tensor:
        """Return the weight called `name` in memory, as a float64 tensor on its device."""
        weight = self._weights[name]
        return effective_weight(weight.value, weight.adapter if weight.leaf == "weight" else None, name)

    def _collect(self, path: str, module: nn.Module, adapter: nn.Module | None) -> None:
        """Register the weights of `module` and of the modules inside it."""
        self.modules[path] = module
        if "lora_A" in module._parameters:  # it keeps the factors of a low-rank adapter as parameters of its own
            adapter = module
        for leaf in (*module._parameters, *getattr(module, "parametrizations", ())):
            value = getattr(module, leaf)
            if value is None or leaf.startswith("lora_"):
                continue
            name = _join(path, leaf)
            self.sharded |= hasattr(value, "full_tensor")
            shape = tuple(getattr(value, "ds_shape", value.shape))
            self._weights[name] = _Weight(module, leaf, adapter)
            self.tensors[name] = TensorInfo(name, shape, str(value.dtype).removeprefix("torch."), self.ref)
        for name, child in module._modules.items():
            if child is not None and name != "parametrizations" and not name.startswith("lora_"):
                self._collect(_join(path, name), child, module if name == "base_layer" else None)


def base_model(model: Any) -> Any:
    """Return the model without what distributes, compiles, trains (Lightning) or adapts it."""
    model = transformer_inside(model)
    while hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        model = unwrapped(model.get_base_model())
    return model


def saved_tensors(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, SavedTensor]:
    """Return the tensors that transformers saves of a model whose weights in memory have these names and shapes."""
    blank = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    names = {id(value): name for name, value in blank.items()}
    saved: dict[str, SavedTensor] = {}
    for name, value in as_saved(model, blank).items():
        if id(value) in names:  # a weight that is only renamed stays the same object
            saved[name] = SavedTensor(tuple(value.shape), (names[id(value)],))
    plain = {source for tensor in saved.values() for source in tensor.sources}
    converted: dict[str, list[str]] = {}  # by the module around the projections, which are joined within one module
    for name in blank:
        if name not in plain:
            converted.setdefault(name.rpartition(".")[0].rpartition(".")[0], []).append(name)
    for sources in converted.values():
        for name, value in as_saved(model, {source: blank[source] for source in sources}).items():
            saved[name] = SavedTensor(tuple(value.shape), tuple(sources), converted=True)
    return saved


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


def _around(name: str) -> str:
    """Return the path of the module around a projection: "attn" for "attn.q_proj.weight" and "attn.in_proj_weight"."""
    path, _, leaf = name.rpartition(".")
    return path.rpartition(".")[0] if leaf == "weight" else path


def _join(path: str, name: str) -> str:
    return path if name in _WRAPPER_NAMES else f"{path}.{name}" if path else name
