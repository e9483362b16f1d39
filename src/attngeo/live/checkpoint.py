"""The weights of a model in memory: `LiveCheckpoint`, which scoring can read, and views that write into the model.

A `LiveCheckpoint` returns the weights that the layers multiply with, wherever they are kept, also while the model is
trained. Reading sharded weights gathers them from all processes, so all processes have to read the same tensors in the
same order. They are gathered one at a time, and only those that are read. `attention_parameters` returns the queries
and keys as views of the parameters.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from attngeo.errors import InputError, LayoutError, SourceError
from attngeo.weights.layout.layer import Layer, join_path
from attngeo.weights.layout.layers import open_layers
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
    return path if name in _WRAPPER_NAMES else join_path(path, name)


# Names of the norm before the attention in its block: LLaMA's "input_layernorm", Falcon's "ln_attn", "layer_norm1",
# "norm1", "ln_1", "layernorm_before", "attn_norm", "pre_sa_norm", and ESM's "LayerNorm" beside the attention. A norm
# behind the attention is called "post_attention_layernorm", or is a part of the module "output".
_NORM_BEFORE = re.compile(
    r"input_layer_?norm|(?:rms_|layer_?)?norm_?1|ln_?1|layer_?norm_before(?:_attention)?|ln_attn|LayerNorm|"
    r"(?:pre_)?(?:sa|self_attn|attn|attention)_(?:layer_?)?norm"
)
_ROTARY = re.compile(r"rotary|rope", re.IGNORECASE)  # in the name of a class


@dataclass(frozen=True)
class LayerParameters:
    """The queries and keys of one self-attention layer.

    The axes *g count the key heads; m query heads share one key head. A head's weight is stored as Wᵀ, [r, d].
    """

    found: Layer  # where it is, and how it is stored
    query: Tensor  # [*g, m, r, d], a view of the parameter
    key: Tensor  # [*g, r, d], a view of the parameter
    pre_norm: bool = False  # a norm of its own block comes before the attention
    rotary: bool = False  # queries and keys are rotated by their positions

    @property
    def width(self) -> int:
        """Return d, the width of the token vectors."""
        return int(self.key.shape[-1])

    @property
    def label(self) -> str:
        """Return how messages name the layer."""
        return f"{self.found.stack} layer {self.found.layer} ({self.found.path})"


@dataclass(frozen=True)
class AttentionParameters:
    """The self-attention layers of a live model."""

    parameters: dict[str, Tensor]  # all plain parameters of the model, by name
    layers: tuple[LayerParameters, ...]
    cross: tuple[str, ...]  # paths of the cross-attention layers, which are left out


class LayerOptions(TypedDict, total=False):
    """The options that choose layers, as in `attngeo.score`."""

    num_heads: int | None
    stack: str | Collection[str] | None
    layers: int | Collection[int] | None
    unproven: bool


def attention_parameters(model: nn.Module, **options: Unpack[LayerOptions]) -> AttentionParameters:
    """Return the queries and keys of the self-attention layers of `model`; options as in `attngeo.score`."""
    if not isinstance(model, nn.Module):
        raise InputError(f"{type(model).__name__}: expected a torch module, whose weights can be written")
    checkpoint = LiveCheckpoint(model)
    if checkpoint.sharded:
        raise LayoutError(f"{checkpoint.ref}: its weights are sharded; initialise the model before it is sharded")
    with open_layers(checkpoint, **options, norms=True) as opened:
        layers = opened.unread
        for remark in opened.left_out:
            warnings.warn(f"{checkpoint.ref}: {remark}", UserWarning, stacklevel=3)
    parameters, modules = checkpoint.plain_parameters, checkpoint.modules
    found: dict[tuple[int, int], LayerParameters] = {}
    for layer in layers:
        if not layer.cross:
            query, key = query_key_views(layer, parameters)
            views = LayerParameters(layer, query, key, reads_own_norm(layer, modules), rotates(layer, modules))
            # Layers that share one tensor under several names count once.
            found.setdefault((query.data_ptr(), key.data_ptr()), views)
    if not found:
        raise LayoutError(
            f"{checkpoint.ref}: the layers asked for are all cross-attention, which initialisations leave unchanged"
        )
    return AttentionParameters(parameters, tuple(found.values()), tuple(layer.path for layer in layers if layer.cross))


def reads_own_norm(layer: Layer, modules: Mapping[str, nn.Module]) -> bool:
    """Return whether a norm of its own block comes before an attention, as in pre-norm models.

    What was proved about the model type decides. Where nothing was, the names of the modules do: they are enough for a
    warning, but not for a score.

    modules: of the model, by path
    """
    if layer.stored_norm is not None:
        return layer.stored_norm.own_block
    for path in _paths_around(layer.path):
        around = modules.get(path)
        if around is not None and any(_NORM_BEFORE.fullmatch(name) for name, _ in around.named_children()):
            return True
        if path.rpartition(".")[2].isdecimal():  # the block
            return False
    return False


def rotates(layer: Layer, modules: Mapping[str, nn.Module]) -> bool:
    """Return whether queries and keys are rotated by their positions; what decides is as in `reads_own_norm`."""
    if layer.rotary_known:
        return layer.rotary is not None
    around = {layer.path, *_paths_around(layer.path), ""}  # the attention has a rotary embedding, or its stack
    return any(
        path.rpartition(".")[0] in around and _ROTARY.search(type(module).__name__) for path, module in modules.items()
    )


def _paths_around(path: str) -> list[str]:
    """Return the paths of the modules around `path`, the nearest first, without that of the whole model.

    >>> _paths_around("layers.3.self_attn")
    ['layers.3', 'layers']
    """
    words = path.split(".")
    return [".".join(words[:count]) for count in range(len(words) - 1, 0, -1)]


def query_key_views(layer: Layer, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return queries [*g, m, r, d] and keys [*g, r, d] of one layer as views of `tensors`."""
    assert layer.heads is not None
    if layer.storage.has_views:
        for name in layer.tensors:
            check_writable(name, tensors.get(name))
    query, key = layer.storage.views(tensors, layer.heads)
    _check_view(layer.storage.query, query, tensors[layer.storage.query])
    _check_view(layer.storage.key, key, tensors[layer.storage.key])
    return query, key


def matrix_view(layer: Layer, name: str, parameters: Mapping[str, Tensor]) -> Tensor:
    """Return parameter `name` of the layer as a matrix [out, in], a view."""
    check_writable(name, parameters.get(name))
    matrix = layer.storage.matrix(parameters[name])
    _check_view(name, matrix, parameters[name])
    return matrix


def _check_view(name: str, view: Tensor, tensor: Tensor) -> None:
    """Raise LayoutError where `view` is a copy: what is written into it would not reach the parameter."""
    if view.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
        raise LayoutError(f"{name}: strides {tensor.stride()} do not allow a view by heads; make it contiguous")


def check_writable(name: str, value: Tensor | None) -> None:
    """Raise LayoutError unless `value` is a plain float parameter with values that can be written."""
    if value is None or not value.is_floating_point():
        found = "is adapted, or computed from other parameters" if value is None else f"has dtype {value.dtype}"
        raise LayoutError(f"{name}: {found}; expected an ordinary float parameter")
    if value.is_meta:
        raise LayoutError(f"{name}: is on the meta device and has no values yet")


def require_heads(layers: Sequence[LayerParameters], initialisation: str, *, shared_keys: bool = True) -> None:
    """Raise LayoutError where an initialisation needs a head count, or a key head of its own for each query head."""
    for layer in layers:
        if not layer.found.heads_known:
            raise LayoutError(f"{layer.label}: the {initialisation} initialisation needs the head count (num_heads)")
        if not shared_keys and layer.query.shape[-3] != 1:
            raise LayoutError(
                f"{layer.label}: {layer.query.shape[-3]} query heads share a key head, but the {initialisation} "
                "initialisation sets the form of each head independently"
            )
