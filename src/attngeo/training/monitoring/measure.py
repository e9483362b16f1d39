"""What a `Monitor` measures: the scores of every layer and head, and the largest attention logit of every head.

`measure_layers` scores layers by the formulas of `attngeo.weights.scoring`, in batches on the device that holds their
weights.

`largest_logits` takes one forward pass without gradients. Each call of `scaled_dot_product_attention` is recorded: its
queries and keys are those that the model multiplies, position embedding and normalisation included. Hooks on the
attention modules tell which layer a call belongs to.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from attngeo.live.attention_modules import allowed_pairs, logit_scale, repeat_keys
from attngeo.live.frozen import frozen_model, preserved_random_state
from attngeo.training.monitoring.records import FIGURES, LayerFigures
from attngeo.weights.layout.layer import Layer, layer_form_factors
from attngeo.weights.scoring.engine import score_precisely
from attngeo.weights.scoring.layer import side_by_side

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

Batch: TypeAlias = Tensor | Mapping[str, Any] | Sequence[Any]  # tensors, on their own or in mappings and sequences
BATCH_ENTRIES = 2**25  # entries of the queries multiplied at once, 256 MB: layers of a large model are measured singly
LOGITS_AT_ONCE = 2**26  # the queries are processed in chunks with at most this many logits


# ---- scores


def measure_layers(layers: Iterable[Layer], heads: bool = True) -> list[LayerFigures]:
    """Return the figures of all layers, whose weights are tensors, and of their heads where they are known."""
    names, figures = [], []
    for batch in _batches(layers):
        names += [(weights.stack, weights.layer, weights.numbers) for weights in batch]
        figures += _figures(batch, heads)
    # Copied from the device at once: each copy waits for all that was computed before.
    rows = torch.cat([one.to(figures[0].device) for one in figures]).cpu().split([len(one) for one in figures])
    return [
        LayerFigures(stack, layer, whole, each, numbers=numbers)
        for (stack, layer, numbers), (whole, *each) in zip(names, map(Tensor.tolist, rows), strict=True)
    ]


def _batches(layers: Iterable[Layer]) -> Iterator[list[Layer]]:
    """Yield consecutive layers of one shape, with at most BATCH_ENTRIES entries in their queries."""
    for key, alike in groupby(layers, _batch_key):
        count = max(1, BATCH_ENTRIES // math.prod(key[0]))
        while batch := list(islice(alike, count)):
            yield batch


def _batch_key(layer: Layer) -> tuple[Any, ...]:
    same = (layer.heads_known, layer.cross, layer.rotary)
    return layer.query.shape, layer.key.shape, layer.query.device, *same


def _figures(batch: Sequence[Layer], heads: bool) -> Tensor:
    """Return the FIGURES of n layers of one shape, of the layer form first and then of each head: [n, 1 + H, 8]."""
    query: Tensor = torch.stack([weights.query for weights in batch])  # [n, H, d_q, r]
    key: Tensor = torch.stack([weights.key for weights in batch])  # [n, G, d_k, r]
    rotary, groups = batch[0].rotary, batch[0].groups
    form = [side_by_side(side)[:, None] for side in layer_form_factors(query, key, axis=1)]  # [n, 1, d, G·r]
    scores = [score_precisely(form[0], form[1], rotary, groups=groups)]  # [n, 1]
    if heads and batch[0].heads_known:
        query, key = query.unflatten(1, (groups, -1)), key.unsqueeze(2)  # [n, G, H/G, d_q, r], [n, G, 1, d_k, r]
        scores.append(score_precisely(query, key, rotary))  # [n, G, H/G]
    figures = torch.cat([torch.stack([getattr(part, name).flatten(1) for name in FIGURES], -1) for part in scores], 1)
    if batch[0].cross:  # queries and keys are different tokens, so that none attends to itself
        figures[..., FIGURES.index("self_attending")] = torch.nan
    return figures


# ---- the largest logits


def largest_logits(
    model: nn.Module, attentions: Sequence[nn.Module | None], batch: Any, *, single_process: bool
) -> list[Tensor | None]:
    """Return the largest |logit| of each head, [H], for each module in `attentions` when `model` runs on `batch`.

    An entry is None if its module makes no call of `scaled_dot_product_attention`. The model's state is restored.

    single_process   no other process takes part in the forward pass, so that work after the last attention can be
                     omitted where transformers allows it
    """
    recorder = _LogitRecorder(len(attentions))
    attention = "sdpa" if getattr(model, "_supports_sdpa", False) else None
    with frozen_model(model, attention=attention) as cleanup:
        for index, module in enumerate(attentions):
            if module is not None:
                enter = module.register_forward_pre_hook(partial(recorder.enter, index))
                cleanup.callback(enter.remove)
                cleanup.callback(module.register_forward_hook(recorder.leave, always_call=True).remove)
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


class _LogitRecorder(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Context manager that records the largest |logit| of each head, [H], of the attention calls of each layer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.running: list[int] = []  # the layers whose modules were entered and not left yet, the innermost last
        self.largest: list[Tensor | None] = [None] * layers  # the maximum where a layer makes several calls
        self.unattributed: list[Tensor] = []  # of calls outside of the modules with hooks

    def enter(self, layer: int, *_: Any) -> None:
        self.running.append(layer)

    def leave(self, *_: Any) -> None:
        self.running.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            logit = largest_logit_per_head(*args, **(kwargs or {}))
            if not self.running:
                self.unattributed.append(logit)
            else:
                before = self.largest[self.running[-1]]
                several = before is not None and before.shape == logit.shape
                self.largest[self.running[-1]] = torch.maximum(before, logit) if several else logit
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
    query: [..., H, Q, r]; without an axis of heads there is one head
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
            largest.append(logits.abs().amax((-2, -1)).reshape(-1, heads).amax(0))
        return torch.stack(largest).amax(0)


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

    Training draws the same random numbers afterwards; a copy of the collator draws from its own generator.
    """
    dataset: Any = getattr(loader, "dataset", None)
    collate: Any = getattr(loader, "collate_fn", None)
    if collate is None or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return None
    with preserved_random_state():
        return copy.deepcopy(collate)([dataset[index] for index in range(min(count, len(dataset)))])
