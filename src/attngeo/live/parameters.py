"""The queries and keys of a live model as views of its parameters: writing into a view writes into the model."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from torch import Tensor, nn

from attngeo.errors import InputError, LayoutError
from attngeo.live.block_structure import BlockStructure
from attngeo.live.checkpoint import LiveCheckpoint
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.layout.site import Site


@dataclass(frozen=True)
class LayerParameters:
    """The queries and keys of one self-attention layer.

    The axes *g count the key heads; m query heads share one key head. A head's weight is stored as Wᵀ, [r, d].
    """

    stack: str
    layer: int
    query: Tensor  # [*g, m, r, d], a view of the parameter
    key: Tensor  # [*g, r, d], a view of the parameter
    site: Site
    pre_norm: bool = False  # a norm of its own block comes before the attention
    rotary: bool = False  # queries and keys are rotated by their positions

    @property
    def width(self) -> int:
        """Return d, the width of the token vectors."""
        return int(self.key.shape[-1])

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the names of the parameters that hold the queries and keys."""
        return self.site.tensors

    @property
    def label(self) -> str:
        """Return how messages name the layer."""
        return f"{self.stack} layer {self.layer} ({self.site.path})"


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
        plans = opened.plans
        for remark in opened.left_out:
            warnings.warn(f"{checkpoint.ref}: {remark}", UserWarning, stacklevel=3)
    parameters, structure = checkpoint.plain_parameters, BlockStructure(checkpoint)
    found: dict[tuple[int, int], LayerParameters] = {}
    for plan in plans:
        if not plan.site.cross:
            query, key = query_key_views(plan.site, parameters)
            kind = structure.reads_own_norm(plan), structure.rotates(plan)
            layer = LayerParameters(plan.stack, plan.layer, query, key, plan.site, *kind)
            # Layers that share one tensor under several names count once.
            found.setdefault((query.data_ptr(), key.data_ptr()), layer)
    if not found:
        raise LayoutError(
            f"{checkpoint.ref}: the layers asked for are all cross-attention, which initialisations leave unchanged"
        )
    return AttentionParameters(
        parameters, tuple(found.values()), tuple(plan.site.path for plan in plans if plan.site.cross)
    )


def query_key_views(site: Site, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return queries [*g, m, r, d] and keys [*g, r, d] of one layer as views of `tensors`."""
    if site.storage.has_views:
        for name in site.tensors:
            check_writable(name, tensors.get(name))
    heads = site.heads_or_whole({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    query, key = site.storage.views(tensors, heads)
    _check_view(site.query, query, tensors[site.query])
    _check_view(site.key, key, tensors[site.key])
    return query, key


def matrix_view(site: Site, name: str, parameters: Mapping[str, Tensor]) -> Tensor:
    """Return parameter `name` of the layer as a matrix [out, in], a view."""
    check_writable(name, parameters.get(name))
    matrix = site.storage.matrix(parameters[name])
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
    if value.is_inference():
        raise LayoutError(f"{name}: was made in inference mode, so it cannot be written")


def require_heads(layers: Sequence[LayerParameters], initialisation: str, *, shared_keys: bool = True) -> None:
    """Raise LayoutError where an initialisation needs a head count, or a key head of its own for each query head."""
    for layer in layers:
        if layer.site.heads is None:
            raise LayoutError(f"{layer.label}: the {initialisation} initialisation needs the head count (num_heads)")
        if not shared_keys and layer.query.shape[-3] != 1:
            raise LayoutError(
                f"{layer.label}: {layer.query.shape[-3]} query heads share a key head, but the {initialisation} "
                "initialisation sets the form of each head independently"
            )
