"""The attention modules of a live model that use transformers' `AttentionInterface`, grouped by stack and layer."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attngeo.arguments import is_whole
from attngeo.errors import InputError
from attngeo.weights.layout.find import find_layers, unknown_layer
from attngeo.weights.layout.heads import pruned_heads
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.stacks import name_stacks

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

EagerFunction = Callable[..., Any]  # a model's own attention function in plain matrix products
_Dispatching = Mapping[str, tuple["nn.Module", EagerFunction]]  # path → module that asks the interface, its function


@dataclass(frozen=True, eq=False)
class AttentionModule:
    """One module that asks the interface for its attention function, with the model's own eager function."""

    path: str
    module: nn.Module
    eager: EagerFunction
    layer: int
    location: Layer  # where it is; also how it is stored, if the table of layouts knows the module (`Layer.known`)
    numbers: tuple[int, ...] | None = None  # of the query heads in the full model, for a pruned layer; None: 0, 1, 2, …
    group: int = 1  # query heads of the full model that share a key head; a pruned module itself counts those it kept


@dataclass(frozen=True, eq=False)
class Stack:
    """The attention layers of one stack, named as in `attngeo.score`: "encoder", "decoder", "cross", "vision", …"""

    name: str
    attentions: tuple[AttentionModule, ...]  # in the order of their layers
    unsupported: tuple[int, ...]  # layers whose attention does not go through the interface

    @property
    def cross(self) -> bool:
        return self.name == "cross"

    def check_supported(self, model_type: str, layers: frozenset[int] | None) -> None:
        """Raise InputError if one of `layers` (None: any layer) does not go through the interface."""
        unsupported = [layer for layer in self.unsupported if layers is None or layer in layers]
        if unsupported:
            supported = ", ".join(str(attention.layer) for attention in self.attentions)
            raise InputError(
                f"{model_type}: layer {unsupported[0]} of its {self.name} does not go through AttentionInterface; "
                f"layers {supported} do, choose them with layers="
            )


def attention_stacks(model: PreTrainedModel) -> dict[str, Stack]:
    """Return the stacks of `model` by name; raise InputError if no module goes through the interface."""
    dispatching = {
        path: (module, eager) for path, module in model.named_modules() if (eager := eager_function(module)) is not None
    }
    if not dispatching:
        raise InputError(
            f"{type_label(model)}: attention does not go through transformers' AttentionInterface, "
            "nothing can be captured"
        )
    attentions: dict[str, list[AttentionModule]] = {}
    unsupported: dict[str, list[int]] = {}
    config = json.loads(model.config.to_json_string(use_diff=False))  # the content of its config.json
    for location in name_stacks(_locations(model, config, dispatching), config):
        path = _enclosing_module(location.path, dispatching)
        if path is None:
            unsupported.setdefault(location.stack, []).append(location.layer)
        else:
            pruned = pruned_heads(config, location.stack, location.layer)
            module, eager = dispatching[path]
            own: Any = getattr(module, "num_key_value_groups", 1)
            if pruned is not None:
                numbers, group = pruned.numbers, pruned.full_group or 1
            else:
                numbers, group = None, own if is_whole(own, lowest=1) else 1
            found = AttentionModule(path, module, eager, location.layer, location, numbers, group)
            attentions.setdefault(location.stack, []).append(found)
    return {
        name: Stack(name, tuple(sorted(members, key=lambda one: one.layer)), tuple(unsupported.get(name, ())))
        for name, members in attentions.items()
    }


def tensor_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a model; the state of quantised modules also holds what is no tensor."""
    return {name: tuple(value.shape) for name, value in model.state_dict().items() if hasattr(value, "shape")}


def type_label(model: nn.Module) -> str:
    """Return how messages name the model: "model type t5", or its class if the config has no model type."""
    model_type = getattr(getattr(model, "config", None), "model_type", "")
    return f"model type {model_type}" if model_type else type(model).__name__


def submodel_for(model: PreTrainedModel, stack: Stack, arguments: Collection[str]) -> PreTrainedModel:
    """Return the innermost model around all of `stack` whose forward takes `arguments`; by default the whole model."""
    from transformers import PreTrainedModel

    innermost, deepest = model, -1
    for path, module in model.named_modules():
        contains = not path or all(attention.path.startswith(f"{path}.") for attention in stack.attentions)
        if contains and isinstance(module, PreTrainedModel) and set(arguments) <= set(forward_arguments(module)):
            depth = path.count(".") + bool(path)
            if depth > deepest:
                innermost, deepest = module, depth
    return innermost


def forward_arguments(model: nn.Module) -> Collection[str]:
    """Return the names of the arguments of the model's forward."""
    return inspect.signature(model.forward).parameters


def eager_function(module: nn.Module) -> EagerFunction | None:
    """Return the eager attention function of `module` if its forward asks the interface, otherwise None.

    A forward that does so reads `ALL_ATTENTION_FUNCTIONS` and names its eager function as the default.
    """
    for base in type(module).__mro__:
        forward = inspect.unwrap(base.__dict__["forward"]) if callable(base.__dict__.get("forward")) else None
        names = getattr(getattr(forward, "__code__", None), "co_names", ())
        if "ALL_ATTENTION_FUNCTIONS" in names:
            name = next((name for name in names if name.endswith("eager_attention_forward")), None)
            eager: EagerFunction | None = forward.__globals__.get(name)  # type: ignore[union-attr]
            return eager
    return None


def _locations(model: PreTrainedModel, config: Mapping[str, Any], dispatching: _Dispatching) -> list[Layer]:
    """Return the layers that scoring finds, so that stacks get the same names, and all other modules."""
    known = [
        layer
        for layer in find_layers(tensor_shapes(model), config)
        if not layer.facts.skips(layer.template) or _enclosing_module(layer.path, dispatching)
    ]
    located = {_enclosing_module(layer.path, dispatching) for layer in known}
    others = [unknown_layer(path, config) for path in dispatching if path not in located]
    return sorted([*known, *others], key=lambda layer: (layer.template, layer.indices))


def _enclosing_module(path: str, dispatching: _Dispatching) -> str | None:
    """Return the path of the dispatching module at `path` or nearest around it, None if there is none."""
    while path and path not in dispatching:
        path = path.rpartition(".")[0]
    return path or None
