"""The queries and keys of a live model as views of its parameters: writing into a view writes into the model."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from torch import Tensor, nn

from attngeo.errors import InputError, LayoutError
from attngeo.live.checkpoint import LiveCheckpoint
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import open_layers

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
    if value.is_inference():
        raise LayoutError(f"{name}: was made in inference mode, so it cannot be written")


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
