"""Send the attention calls of a live transformers model to a recorder, and compute logits as they do.

transformers looks up the function that computes attention in its `AttentionInterface`. `recorded_attention` registers a
function of ours there, which passes each call to the recorder. `attention_logits` computes c·q kᵀ from what such a call
receives: scale, grouped keys, mask, position bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from attngeo.errors import InputError
from attngeo.live.attention_modules import AttentionModule, Stack, type_label
from attngeo.live.frozen import frozen_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    return mask if mask.dtype == torch.bool else mask > MASKED


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
    if mask is not None and mask.dtype != torch.bool:
        bias = mask[0].float()
        bias = bias.masked_fill(bias <= MASKED, 0)
        if bias.any():
            logits += bias
    return logits
