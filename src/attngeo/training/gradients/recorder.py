"""The self-attention layers of a live model, and a record of their calls in one forward pass.

A call is recorded with its token vectors, queries, keys and a differentiable mask. The gradient of the loss with
respect to that mask is the gradient with respect to the attention logits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attngeo.errors import AttngeoError, InputError
from attngeo.live.attention_modules import AttentionModule, Stack, logit_scale, tensor_shapes, type_label
from attngeo.weights.layout.heads import count_heads
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import check_highest

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# ---- layers


@dataclass(frozen=True, eq=False)
class SelfAttentionLayer:
    """One self-attention layer of a live model."""

    location: Layer  # with counted heads where `missing` is empty
    weights: tuple[Hashable, Hashable]  # identity of its query and key weights; modules that share them are one layer
    projections: Mapping[str, nn.Module]  # tensor name → the module that multiplies vectors with it
    missing: str  # why the gradients of its weights cannot be given; empty where they can

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tensors that multiply the token vectors, on the query and on the key side."""
        return self.location.storage.inputs if self.location.known else ()

    def factors(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the queries [H, d, r] and the keys [G, d, r] in the stored `tensors`, by tensor name."""
        assert self.location.heads is not None, self.missing
        query, key = self.location.storage.factors(tensors, self.location.heads)
        return query, key


def self_attention_layers(
    model: PreTrainedModel, stacks: Iterable[Stack], layers: frozenset[int] | None
) -> dict[AttentionModule, SelfAttentionLayer]:
    """Return the layer of each self-attention module in the requested layers (None: all)."""
    label = type_label(model)
    found = [attention for stack in stacks for attention in stack.attentions if not attention.location.cross]
    if not found:
        raise InputError(f"{label}: no self-attention layer goes through AttentionInterface")
    numbers = [attention.layer for attention in found]
    requested = [attention for attention in found if layers is None or attention.layer in layers]
    if not requested:
        raise InputError(
            f"{label}: none of the requested layers exist; the layers are {min(numbers)} to {max(numbers)}"
        )
    check_highest(layers, max(numbers), label)
    shapes = tensor_shapes(model)
    parameter_ids = {name: id(value) for name, value in model.named_parameters(remove_duplicate=False)}
    return {attention: _layer(model, attention, shapes, parameter_ids) for attention in requested}


def _layer(
    model: PreTrainedModel,
    attention: AttentionModule,
    shapes: Mapping[str, tuple[int, ...]],
    parameter_ids: Mapping[str, int],
) -> SelfAttentionLayer:
    layer, path = attention.location, attention.path
    if not layer.known:
        unknown = f"{path}: the layout table does not contain its query and key tensors"
        return SelfAttentionLayer(layer, (path, path), {}, unknown)
    storage, missing = layer.storage, ""
    if layer.facts.status != "right" or layer.facts.skips(layer.template):
        missing = f"{layer.path}: the layout of {type_label(model)} was never checked against a live model"
    elif not storage.has_views:
        missing = f"{layer.path}: latent attention, its queries and keys are products of several projections"
    try:
        layer = count_heads(layer, shapes, config=model.config.to_dict())
    except AttngeoError as error:
        missing = str(error)
    if layer.heads is None and not missing:
        missing = f"{layer.path}: the head count is not known"
    names = dict.fromkeys((*storage.inputs, *layer.tensors))
    modules = {name: module for name in names if (module := _module_of_weight(model, name)) is not None}
    if len(modules) < len(names) and not missing:
        missing = f"{storage.query}: not the weight of a module of its own"
    weights = parameter_ids.get(storage.query, path), parameter_ids.get(storage.key, path)
    return SelfAttentionLayer(layer, weights, modules, missing)


def _module_of_weight(model: nn.Module, name: str) -> nn.Module | None:
    """Return the module whose `weight` is the tensor `name`, None if the tensor is something else."""
    path, _, leaf = name.rpartition(".")
    try:
        return model.get_submodule(path) if leaf == "weight" and path else None
    except AttributeError:
        return None


# ---- calls


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of the attention function by a self-attention module."""

    layer: SelfAttentionLayer
    path: str
    x: Tensor  # [B, N, d], the token vectors that the projections received
    query: Tensor  # [B, H, N, r], as multiplied: bias, rotation and norm included
    key: Tensor  # [B, G, N, r]
    logit_leaf: Tensor  # [B, H, N, N], a leaf added to the logits after scale, soft-cap and bias
    scale: float
    softcap: float | None
    projected: Mapping[str, Tensor]  # tensor name → [B, N, out], the output of its projection
    missing: str  # why the gradients of the weights cannot be given; empty where they can


class CallRecorder:
    """Records the attention calls of the given modules; an `AttentionRecorder` for `recorded_attention`."""

    def __init__(self, model_type: str, layers: Mapping[AttentionModule, SelfAttentionLayer]) -> None:
        self.model_type, self.layers, self.attentions = model_type, layers, tuple(layers)
        self.calls: list[AttentionCall] = []
        # Of modules whose forward is running: what they received, and inputs and outputs of their projections.
        self._module_inputs: dict[nn.Module, Any] = {}
        self._projected: dict[nn.Module, dict[str, tuple[Tensor, Tensor]]] = {}

    def register_hooks(self, cleanup: ExitStack) -> None:
        """Record the inputs of the attention modules and the calls of their projections until `cleanup` closes."""
        for attention, layer in self.layers.items():
            module = attention.module
            cleanup.callback(module.register_forward_pre_hook(self._begin_forward, with_kwargs=True).remove)
            for name, projection in layer.projections.items():
                cleanup.callback(projection.register_forward_hook(self._projection_hook(module, name)).remove)

    def attend(
        self,
        attention: AttentionModule,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        """Run the model's eager attention with a leaf as its mask; query [B, H, N, r], key and value [B, G, N, r]."""
        calls = self._projected.pop(attention.module)
        if query.shape[2] != key.shape[2]:
            raise InputError(
                f"{self.model_type}: {attention.path} has {query.shape[2]} queries and {key.shape[2]} keys, expected "
                "equal numbers: keys from a cache or from another sequence have no token vectors here"
            )
        layer = self.layers[attention]
        # New views, so that other uses of the queries and keys in the model do not count as attention.
        query, key = _in_graph(query).view_as(query), _in_graph(key).view_as(key)
        leaf, mask = _logit_leaf(mask, query, key)
        output, weights = attention.eager(attention.module, query, key, value, mask, **options)
        scale = float(logit_scale(query, options.get("scaling")))
        x = self._token_vectors(attention, [calls[name][0] for name in layer.inputs if name in calls], query)
        projected = {name: out for name, (_, out) in calls.items()}
        missing = layer.missing
        if absent := [name for name in layer.location.tensors if not missing and name not in projected]:
            missing = f"{absent[0]}: was not used, the queries or keys come from another tensor"
        self.calls.append(
            AttentionCall(layer, attention.path, x, query, key, leaf, scale, options.get("softcap"), projected, missing)
        )
        return output, weights

    def _begin_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._projected[module] = {}
        self._module_inputs[module] = kwargs.get("hidden_states", args[0] if args else None)

    def _projection_hook(self, owner: nn.Module, name: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            output = _in_graph(output)
            if owner in self._projected and args:
                self._projected[owner][name] = args[0], output
            return output

        return hook

    def _token_vectors(self, attention: AttentionModule, sides: list[Tensor], query: Tensor) -> Tensor:
        """Return the token vectors [B, N, d]: the input of the projections, or of the module if those are unknown."""
        if len(sides) == 2 and sides[0] is not sides[1] and not torch.equal(*sides):
            raise InputError(
                f"{self.model_type}: {attention.path} computes queries and keys from different vectors, "
                "expected self-attention"
            )
        x = sides[0] if sides else self._module_inputs.get(attention.module)
        batch, _, length, _ = query.shape
        if not isinstance(x, Tensor) or x.numel() != batch * length * x.shape[-1]:
            received = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise InputError(
                f"{self.model_type}: {attention.path} received {received}, expected vectors of {batch}×{length} tokens"
            )
        return x.detach().reshape(batch, length, -1)


def _in_graph(value: Tensor) -> Tensor:
    """Return `value` as part of the autograd graph; with frozen weights nothing before the first attention is."""
    return value if value.requires_grad else value.detach().requires_grad_()


def _logit_leaf(mask: Tensor | None, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return a leaf [B, H, N, N] whose gradient is that of the logits, and the additive mask that contains it."""
    shape = (*query.shape[:3], key.shape[2])
    if mask is None or mask.requires_grad:  # a position bias computed from the tokens has gradients of its own
        leaf = torch.zeros(shape, dtype=query.dtype, device=query.device, requires_grad=True)
        return leaf, leaf if mask is None else mask[..., : shape[3]] + leaf
    mask = mask[(None,) * (4 - mask.dim())][..., : shape[3]]  # [1 or B, 1 or H, 1 or N, N]
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    # The mask is only widened, and clamped to the range of float32: the lowest number of a wide type is infinite in a
    # narrow one, and a softmax that rounds to float32 returns NaN for a row of those (padding outside a window).
    widened = torch.promote_types(mask.dtype, query.dtype)
    mask = mask.to(widened).clamp(min=max(torch.finfo(widened).min, torch.finfo(torch.float32).min))
    leaf = mask.expand(shape).clone().requires_grad_()
    return leaf, leaf


class Float64Softmax(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Context manager in which the softmax of float64 logits stays float64, where eager attention rounds to float32.

    Fused attention takes the softmax in the precision of the logits; inside this context eager attention does too.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "softmax" and args and kwargs.get("dtype") == torch.float32:
            logits = args[0]
            if logits.dtype == torch.float64 and logits.dim() == 4:
                kwargs = kwargs | {"dtype": torch.float64}
        return func(*args, **kwargs)
