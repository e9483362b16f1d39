"""Record the self-attention calls of one forward pass: token vectors, queries, keys and a differentiable mask.

The gradient of the loss with respect to that mask is the gradient with respect to the attention logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attngeo.errors import InputError
from attngeo.live.attention_modules import AttentionModule, logit_scale
from attngeo.training.gradients.projections import SelfAttentionLayer


@dataclass(frozen=True, eq=False)
class ProjectionCall:
    """One call of a projection module; its output is a node of the autograd graph."""

    input: Tensor  # [B, N, d], token vectors
    output: Tensor  # [B, N, out]


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


class CallRecorder:
    """Records the attention calls of the given modules; an `AttentionRecorder` for `recorded_attention`."""

    def __init__(
        self, model_type: str, attentions: tuple[AttentionModule, ...], layers: Mapping[int, SelfAttentionLayer]
    ) -> None:
        self.model_type, self.attentions = model_type, attentions
        self.layers = layers  # by id of the module
        self.calls: list[AttentionCall] = []
        self._projection_calls: dict[int, dict[str, ProjectionCall]] = {}  # of modules whose forward is running
        self._module_inputs: dict[int, Any] = {}

    def register_hooks(self, cleanup: ExitStack) -> None:
        """Record the inputs of the attention modules and the calls of their projections until `cleanup` closes."""
        for attention in self.attentions:
            owner = id(attention.module)
            hook = attention.module.register_forward_pre_hook(self._begin_forward, with_kwargs=True)
            cleanup.callback(hook.remove)
            for name, projection in self.layers[owner].projections.items():
                cleanup.callback(projection.register_forward_hook(self._projection_hook(owner, name)).remove)

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
        projection_calls = self._projection_calls.pop(id(attention.module))
        if query.shape[2] != key.shape[2]:
            raise InputError(
                f"{self.model_type}: {attention.path} has {query.shape[2]} queries and {key.shape[2]} keys, expected "
                "equal numbers: keys from a cache or from another sequence have no token vectors here"
            )
        layer = self.layers[id(attention.module)]
        # New views, so that other uses of the queries and keys in the model do not count as attention.
        query, key = _in_graph(query).view_as(query), _in_graph(key).view_as(key)
        leaf, mask = _logit_leaf(mask, query, key)
        output, weights = attention.eager(attention.module, query, key, value, mask, **options)
        scale = float(logit_scale(query, options.get("scaling")))
        projected = {name: call.output for name, call in projection_calls.items()}
        x = self._token_vectors(attention, layer, projection_calls, query)
        self.calls.append(
            AttentionCall(layer, attention.path, x, query, key, leaf, scale, options.get("softcap"), projected)
        )
        return output, weights

    def _begin_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._projection_calls[id(module)] = {}
        self._module_inputs[id(module)] = kwargs.get("hidden_states", args[0] if args else None)

    def _projection_hook(self, owner: int, name: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            output = _in_graph(output)
            if owner in self._projection_calls and args:
                self._projection_calls[owner][name] = ProjectionCall(args[0], output)
            return output

        return hook

    def _token_vectors(
        self,
        attention: AttentionModule,
        layer: SelfAttentionLayer,
        projection_calls: Mapping[str, ProjectionCall],
        query: Tensor,
    ) -> Tensor:
        """Return the token vectors [B, N, d]: the input of the projections, or of the module if those are unknown."""
        sides = [projection_calls[name].input for name in dict.fromkeys(layer.inputs) if name in projection_calls]
        if len(sides) == 2 and sides[0] is not sides[1] and not torch.equal(*sides):
            raise InputError(
                f"{self.model_type}: {attention.path} computes queries and keys from different vectors, "
                "expected self-attention"
            )
        x = sides[0] if sides else self._module_inputs.get(id(attention.module))
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
