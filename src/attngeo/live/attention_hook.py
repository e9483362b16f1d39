"""Send the attention calls of a live transformers model to a recorder.

transformers looks up the function that computes attention in its `AttentionInterface`. `recorded_attention` registers a
function of ours there, which passes each call to the recorder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from attngeo.live.attention_modules import AttentionModule, Stack
from attngeo.live.frozen import frozen_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_IMPLEMENTATION = "attngeo_recorded"  # the name under which transformers finds our attention function


class AttentionRecorder(Protocol):
    """What `recorded_attention` sends attention calls to."""

    attentions: tuple[AttentionModule, ...]  # the modules whose calls are recorded

    def begin_forward(self, module: nn.Module, *_: Any) -> None:
        """Note that the forward of a recorded module begins; one attention call is expected in it."""

    def attend(
        self,
        attention: AttentionModule,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attention output and probabilities; query [B, H, Q, r], key and value [B, G, K, r]."""


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
    token = _active.set((recorder, recorded, others))
    try:
        with frozen_model(model, attention=_IMPLEMENTATION, parameter_gradients=parameter_gradients) as cleanup:
            for attention in recorder.attentions:
                cleanup.callback(attention.module.register_forward_pre_hook(recorder.begin_forward).remove)
            yield cleanup
    finally:
        _active.reset(token)


# The recorder in use, the modules it records, and all attention modules of the model; the latter two by id of module.
_active: ContextVar[tuple[AttentionRecorder, Mapping[int, AttentionModule], Mapping[int, AttentionModule]]] = (
    ContextVar("active_attention_recorder")
)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> Any:
    """Compute attention for `module`, through the recorder where it is recorded; called by transformers."""
    from transformers import AttentionInterface

    recorder, recorded, others = _active.get()
    if (attention := recorded.get(id(module))) is not None:
        return recorder.attend(attention, query, key, value, attention_mask, options)
    if (attention := others.get(id(module))) is not None:
        return attention.eager(module, query, key, value, attention_mask, **options)
    return AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **options)
