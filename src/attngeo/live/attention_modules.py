"""The attention modules of a live model, and recording what they compute.

transformers looks up the function that computes attention in its `AttentionInterface`. `attention_stacks` finds the
modules that do so. `recorded_attention` registers a function of ours there, which passes each call to a recorder.
`attention_logits` computes c·q kᵀ from what such a call receives: scale, grouped keys, mask, position bias.
"""

from __future__ import annotations

import inspect
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from attngeo.arguments import is_whole
from attngeo.errors import InputError
from attngeo.weights.layout.find import find_layers, unknown_layer
from attngeo.weights.layout.heads import pruned_heads
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.stacks import name_stacks

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

EagerFunction = Callable[..., Any]  # a model's own attention function in plain matrix products
_Dispatching = Mapping[str, tuple["nn.Module", EagerFunction]]  # path → module that asks the interface, its function


@dataclass(frozen=True, eq=False)
class AttentionModule:
    """One module that asks the interface for its attention function, with the model's own eager function."""

    path: str
    module: nn.Module
    eager: EagerFunction
    location: Layer  # where it is; also how it is stored, if the table of layouts knows the module (`Layer.known`)

    @property
    def layer(self) -> int:
        """Return its number within its stack."""
        return self.location.layer

    @property
    def group(self) -> int:
        """Return how many query heads share a key head in the full model; a pruned module counts those it kept."""
        heads = self.location.heads
        pruned = heads is not None and heads.full_group
        own: Any = pruned or getattr(self.module, "num_key_value_groups", 1)
        return own if is_whole(own, lowest=1) else 1


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
    attentions: dict[str, list[AttentionModule]] = defaultdict(list)
    unsupported: dict[str, list[int]] = defaultdict(list)
    config = json.loads(model.config.to_json_string(use_diff=False))  # the content of its config.json
    for location in name_stacks(_locations(model, config, dispatching), config):
        path = _enclosing_module(location.path, dispatching)
        if path is None:
            unsupported[location.stack].append(location.layer)
        else:
            own = replace(location, heads=pruned_heads(config, location.stack, location.layer))
            attentions[location.stack].append(AttentionModule(path, *dispatching[path], own))
    return {
        name: Stack(name, tuple(sorted(members, key=lambda one: one.layer)), tuple(unsupported[name]))
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


_IMPLEMENTATION = "attngeo_recorded"  # the name under which transformers finds our attention function
MASKED = -1e4  # an additive mask at or below this value excludes a key; no position bias is that low


class AttentionRecorder(Protocol):
    """What `recorded_attention` sends attention calls to."""

    attentions: tuple[AttentionModule, ...]  # the modules whose calls are recorded

    def attend(
        self,
        attention: AttentionModule,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attention output and probabilities; query [B, H, Q, r], key and value [B, G, K, r].

        It is called at most once in each forward of the module.
        """


@contextmanager
def recorded_attention(
    model: PreTrainedModel,
    stacks: Mapping[str, Stack],
    recorder: AttentionRecorder,
    *,
    parameter_gradients: bool = False,
) -> Iterator[ExitStack]:
    """Freeze `model` and let its attention modules call `recorder.attend`; restore the model at the end.

    stacks               all attention modules of the model; those without a recorder run their own eager function
    parameter_gradients  as in `frozen_model`, whose `ExitStack` is yielded
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    from attngeo.live.frozen import frozen_model  # late: it needs torch

    AttentionInterface.register(_IMPLEMENTATION, _attend)
    AttentionMaskInterface.register(_IMPLEMENTATION, eager_mask)
    recorded = {id(attention.module): attention for attention in recorder.attentions}
    others = {id(attention.module): attention for stack in stacks.values() for attention in stack.attentions}
    entered: set[int] = set()  # recorded modules whose forward has begun and has not called attention yet

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,  # some models pass it by this name
        **options: Any,
    ) -> Any:
        if (attention := recorded.get(id(module))) is not None:
            if id(module) not in entered or query.dim() != 4:
                raise not_one_matrix(type_label(model), attention)
            entered.discard(id(module))
            return recorder.attend(attention, query, key, value, attention_mask, options)
        if (attention := others.get(id(module))) is not None:
            return attention.eager(module, query, key, value, attention_mask, **options)
        return AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **options)

    token = _active.set(attend)
    try:
        with frozen_model(model, attention=_IMPLEMENTATION, parameter_gradients=parameter_gradients) as cleanup:
            for attention in recorder.attentions:
                hook = attention.module.register_forward_pre_hook(lambda module, _: entered.add(id(module)))
                cleanup.callback(hook.remove)
            yield cleanup
    finally:
        _active.reset(token)


def not_one_matrix(model_label: str, attention: AttentionModule) -> InputError:
    """Return the error about a module whose attention is not one queries × keys matrix per head."""
    return InputError(
        f"{model_label}: {attention.path} computes attention in windows or blocks, not as one queries × keys matrix"
    )


# The attention function of the innermost context; transformers keeps the function it was given until the process ends.
_active: ContextVar[Callable[..., Any]] = ContextVar("active_attention_function")


def _attend(module: nn.Module, *arguments: Any, **options: Any) -> Any:
    """Compute attention for `module` as the context in use says; called by transformers."""
    return _active.get()(module, *arguments, **options)


def allowed_pairs(mask: Tensor) -> Tensor:
    """Return the boolean mask, true where a query may attend to a key, of a boolean or an additive mask."""
    return mask > MASKED if mask.is_floating_point() else mask


def logit_scale(query: Tensor, scale: float | None) -> float:
    """Return c: `scale`, or the default 1/√r if it is None. query: [..., r]."""
    return query.shape[-1] ** -0.5 if scale is None else scale


def repeat_keys(key: Tensor, heads: int) -> Tensor:
    """Return keys [..., H, K, r], one for each query head, from [..., G, K, r]; head h reads key head h // (H/G)."""
    groups = key.shape[-3]
    return key if groups == heads else key.repeat_interleave(heads // groups, -3)


def attention_logits(query: Tensor, key: Tensor, mask: Tensor | None, options: Mapping[str, Any]) -> Tensor:
    """Return the logits [H, Q, K] in float32: c·q kᵀ, soft-capped, plus the position bias, before the mask.

    query:   [1, H, Q, r]
    key:     [1, G, K, r]
    mask:    [1, 1 or H, 1 or Q, K]; finite entries of an additive mask are a position bias (BEiT)
    options: keyword arguments of the attention function; "scaling", "softcap" and "position_bias" (T5) are used
    """
    query, key = query[0].float(), repeat_keys(key[0].float(), query.shape[1])  # [H, Q, r], [H, K, r]
    logits = (query @ key.transpose(1, 2)).mul_(logit_scale(query, options.get("scaling")))  # [H, Q, K]
    if options.get("softcap") is not None:
        logits.div_(options["softcap"]).tanh_().mul_(options["softcap"])
    if options.get("position_bias") is not None:
        logits += options["position_bias"][0]
    if mask is not None and mask.is_floating_point():
        bias = mask[0].float()
        bias = bias.masked_fill(bias <= MASKED, 0)
        if bias.any():
            logits += bias
    return logits
