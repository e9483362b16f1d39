"""The largest attention logits of a model on a few rows, from one forward pass without gradients.

Each call of `scaled_dot_product_attention` is recorded: its queries and keys are those that the model multiplies,
position embedding and normalisation included. Hooks on the attention modules tell which layer a call belongs to.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from attngeo.live.attention_modules import allowed_pairs, logit_scale, repeat_keys
from attngeo.live.frozen import frozen_model, preserved_random_state

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
Batch: TypeAlias = Tensor | Mapping[str, Any] | Sequence[Any]  # tensors, on their own or in mappings and sequences
LOGITS_AT_ONCE = 2**26  # the queries are processed in chunks with at most this many logits


def largest_logits(
    model: nn.Module, attentions: Sequence[nn.Module | None], batch: Any, *, single_process: bool
) -> list[Tensor | None]:
    """Return the largest |logit| of each head, [H], for each module in `attentions` when `model` runs on `batch`.

    An entry is None if its module makes no call of `scaled_dot_product_attention`. The model's state is restored.

    single_process   no other process takes part in the forward pass, so that work after the last attention can be
                     omitted where transformers allows it
    """
    recorder = LogitRecorder(len(attentions))
    attention = "sdpa" if getattr(model, "_supports_sdpa", False) else None
    with frozen_model(model, attention=attention) as cleanup:
        for index, module in enumerate(attentions):
            if module is not None:
                enter, leave = _layer_hooks(recorder, index)
                cleanup.callback(module.register_forward_pre_hook(enter).remove)
                cleanup.callback(module.register_forward_hook(leave, always_call=True).remove)
        with recorder:
            if isinstance(batch, Mapping):
                model(**(_minimal_arguments(model, batch) if single_process else batch))
            elif isinstance(batch, (list, tuple)):
                model(*batch)
            else:
                model(batch)
    if len(recorder.unattributed) == len(attentions) and not any(one is not None for one in recorder.largest):
        return [*recorder.unattributed]  # a model whose layers are functions: they run in order
    return recorder.largest


class LogitRecorder(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Context manager that records the largest |logit| of each head, [H], of the attention calls of each layer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layer: int | None = None  # the layer that is running
        self.largest: list[Tensor | None] = [None] * layers  # the maximum where a layer makes several calls
        self.unattributed: list[Tensor] = []  # of calls outside of the modules with hooks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            logit = largest_logit_per_head(*args, **(kwargs or {}))
            if self.layer is None:
                self.unattributed.append(logit)
            else:
                before = self.largest[self.layer]
                several = before is not None and before.shape == logit.shape
                self.largest[self.layer] = torch.maximum(before, logit) if several else logit
        return func(*args, **(kwargs or {}))


def largest_logit_per_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return max |c·q kᵀ + bias| per head, [H], over the batch and the pairs that the mask allows.

    The arguments are those of `torch.nn.functional.scaled_dot_product_attention`:
    query: [..., H, Q, r]
    key:   [..., G, K, r]
    """
    heads = query.shape[-3] if query.dim() > 3 else 1
    with torch.autocast(query.device.type, enabled=False):
        query, key = query.float(), key.float()
        if query.dim() > 3:
            key = repeat_keys(key, heads)  # [..., H, K, r]
        query = query * logit_scale(query, scale)
        largest = []
        step = max(1, LOGITS_AT_ONCE // max(1, query[..., :1, 0].numel() * key.shape[-2]))
        for start in range(0, query.shape[-2], step):
            rows = slice(start, min(start + step, query.shape[-2]))
            logits = query[..., rows, :] @ key.mT  # [..., H, rows, K]
            if is_causal:
                logits = logits.tril(start)
            if attn_mask is not None:
                mask = attn_mask[..., rows, :] if attn_mask.shape[-2] > 1 else attn_mask
                biased = logits if mask.dtype == torch.bool else logits + mask
                logits = biased.masked_fill(~allowed_pairs(mask), 0)
            other_axes = [axis for axis in range(logits.dim()) if axis != logits.dim() - 3 or logits.dim() < 4]
            largest.append(logits.abs().amax(other_axes).reshape(heads))
        return torch.stack(largest).amax(0)


def _layer_hooks(recorder: LogitRecorder, layer: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the hooks that set `recorder.layer` when a module is entered and restore it when it is left."""
    outer: list[int | None] = []

    def enter(*_: Any) -> None:
        outer.append(recorder.layer)
        recorder.layer = layer

    def leave(*_: Any) -> None:
        recorder.layer = outer.pop()

    return enter, leave


def _minimal_arguments(model: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `batch` without labels, with a cache and most of the output switched off where the model allows it."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "_attn_implementation_internal") or getattr(config, "is_encoder_decoder", False):
        return batch
    accepted = inspect.signature(type(model).forward).parameters
    extra = {name: value for name, value in (("use_cache", False), ("logits_to_keep", 1)) if name in accepted}
    return {name: value for name, value in batch.items() if name != "labels"} | extra


# ---- the few rows of a batch or of a data set on which the logits are measured


def first_rows(batch: Any, count: int, device: torch.device) -> Any:
    """Return `batch` (a tensor, or tensors in mappings and sequences) with only its first rows, on `device`."""
    if isinstance(batch, Tensor):
        return (batch[:count] if batch.dim() else batch).to(device)
    if isinstance(batch, Mapping):
        return {name: first_rows(part, count, device) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [first_rows(part, count, device) for part in batch]
    return batch


def first_rows_of_loader(loader: DataLoader | None, count: int) -> Any:
    """Return the first items of the loader's data set, collated; None if the data set has no single items.

    The random numbers that training draws afterwards are the same as without this call.
    """
    dataset: Any = getattr(loader, "dataset", None)
    collate: Any = getattr(loader, "collate_fn", None)
    if collate is None or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return None
    collator = getattr(collate, "data_collator", collate)  # Trainer wraps the collator it was given
    with preserved_random_state(), _preserved_generators(dataset, collator):
        return collate([dataset[index] for index in range(min(count, len(dataset)))])


@contextmanager
def _preserved_generators(*owners: Any) -> Iterator[None]:
    """Let a data set and a collator that have random generators of their own draw from copies of them."""
    # A collator of transformers makes its generator when it is first called.
    generators = [
        (owner, name, value)
        for owner in owners
        for name, value in getattr(owner, "__dict__", {}).items()
        if isinstance(value, _GENERATORS) or (name == "generator" and value is None)
    ]
    try:
        for owner, name, value in generators:
            setattr(owner, name, copy.deepcopy(value))
        yield
    finally:
        for owner, name, value in generators:
            setattr(owner, name, value)
