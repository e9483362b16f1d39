"""The self-attention layers of a live model, and the modules that compute their queries and keys."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from attngeo.errors import AttngeoError, InputError
from attngeo.live.attention_modules import AttentionModule, Stack, tensor_shapes, type_label
from attngeo.weights.layout.heads import count_heads
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import check_highest

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class SelfAttentionLayer:
    """One self-attention layer of a live model."""

    weights: tuple[Hashable, Hashable]  # identity of its query and key weights; modules that share them are one layer
    stack: str
    layer: int
    location: Layer  # with counted heads where `missing` is empty
    projections: Mapping[str, nn.Module]  # tensor name → the module that multiplies vectors with it
    missing: str  # why the gradients of its weights cannot be given; empty where they can

    @property
    def site(self) -> Layer:
        """The tensors of the layer; only for layers whose weights are known."""
        assert self.location.known, self.missing
        return self.location

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tensors that multiply the token vectors, on the query and on the key side."""
        return self.location.storage.inputs if self.location.known else ()

    def factors(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the queries [H, d, r] and the keys [G, d, r] in the stored `tensors`, by tensor name."""
        assert self.site.heads is not None, self.missing
        query, key = self.site.storage.factors(tensors, self.site.heads)
        return query, key


def self_attention_layers(
    model: PreTrainedModel, stacks: Iterable[Stack], layers: frozenset[int] | None
) -> tuple[tuple[AttentionModule, ...], dict[int, SelfAttentionLayer]]:
    """Return the self-attention modules in the requested layers (None: all), and their layers by id of the module."""
    shapes = tensor_shapes(model)
    parameter_ids = {name: id(value) for name, value in model.named_parameters(remove_duplicate=False)}
    self_attentions = [
        (stack.name, attention) for stack in stacks for attention in stack.attentions if not attention.location.cross
    ]
    requested = [(name, one) for name, one in self_attentions if layers is None or one.layer in layers]
    if not self_attentions:
        raise InputError(f"{type_label(model)}: no self-attention layer goes through AttentionInterface")
    numbers = [attention.layer for _, attention in self_attentions]
    if not requested:
        raise InputError(
            f"{type_label(model)}: none of the requested layers exist; the layers are {min(numbers)} to {max(numbers)}"
        )
    check_highest(layers, max(numbers), type_label(model))
    by_module = {
        id(attention.module): _layer(model, stack, attention, shapes, parameter_ids) for stack, attention in requested
    }
    return tuple(attention for _, attention in requested), by_module


def _layer(
    model: PreTrainedModel,
    stack: str,
    attention: AttentionModule,
    shapes: Mapping[str, tuple[int, ...]],
    parameter_ids: Mapping[str, int],
) -> SelfAttentionLayer:
    site = attention.location
    if not site.known:
        unknown = f"{attention.path}: the layout table does not contain its query and key tensors"
        return SelfAttentionLayer((attention.path,) * 2, stack, attention.layer, site, {}, unknown)
    query, key = (parameter_ids.get(name, attention.path) for name in (site.storage.query, site.storage.key))
    missing = ""
    if site.facts.status != "right" or site.facts.skips(site.template):
        missing = f"{site.path}: the layout of {type_label(model)} was never checked against a live model"
    elif not site.storage.has_views:
        missing = f"{site.path}: latent attention, its queries and keys are products of several projections"
    try:
        site = count_heads(site, shapes, config=model.config.to_dict())
    except AttngeoError as error:
        missing = str(error)
    if site.heads is None and not missing:
        missing = f"{site.path}: the head count is not known"
    names = dict.fromkeys((*site.storage.inputs, *site.tensors))
    modules = {name: module for name in names if (module := _module_of_weight(model, name)) is not None}
    if len(modules) < len(names) and not missing:
        missing = f"{site.storage.query}: not the weight of a module of its own"
    return SelfAttentionLayer((query, key), stack, attention.layer, site, modules, missing)


def _module_of_weight(model: nn.Module, name: str) -> nn.Module | None:
    """Return the module whose `weight` is the tensor `name`, None if the tensor is something else."""
    path, _, leaf = name.rpartition(".")
    try:
        return model.get_submodule(path) if leaf == "weight" and path else None
    except AttributeError:
        return None
