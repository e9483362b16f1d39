"""Record the attention of one stack as an array [queries, keys, heads] while the model runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attngeo.errors import InputError
from attngeo.live.attention_modules import AttentionModule, Stack, allowed_pairs, attention_logits, not_one_matrix

# length of an axis → indices of the positions that are not padding, None if there is no padding
PaddingFilter = Callable[[int], Tensor | None]

CHECKED_QUERIES = 8  # queries per layer whose logits are compared with the model's own probabilities


class TensorRecorder:
    """Fills one array [queries, keys, heads] while a model runs, one layer at a time.

    The array is allocated at the first attention call, from the assumption that each attention module of the stack is
    called once and that all have as many heads as the first. If the run shows otherwise, the recorder only counts heads
    and a second run, planned by those counts, fills the array. Memory thus holds the array and a single layer.
    """

    def __init__(
        self,
        model_type: str,
        stack: Stack,
        layers: frozenset[int] | None,
        stage: str,
        padding_filters: tuple[PaddingFilter, PaddingFilter],
    ) -> None:
        self.model_type, self.stage, self.layers = model_type, stage, layers
        self.attentions = stack.attentions
        self.padding_filters = padding_filters  # of queries and of keys
        self.planned_heads: dict[int, int] = {}  # layer → heads
        self.layers_are_calls = False  # modules are called more than once: the n-th call is layer n
        self.begin_run()

    def begin_run(self) -> None:
        """Forget what the previous run recorded; the plan made from it stays."""
        self.values: NDArray[np.float32] | None = None  # [Q, K, H]
        self.masks: dict[int, Tensor | None] = {}  # layer → bool [Q, K] or [heads, Q, K], None: nothing is masked
        self.recorded_heads: dict[int, int] = {}  # layer → heads
        self.numbers: dict[int, tuple[int, ...]] = {}  # layer → its heads by their numbers in the full model, if pruned
        self.heads_of_calls: list[int] = []  # for each attention call of the stack
        self.lengths: tuple[int, int] | None = None  # queries and keys, padding included
        self.kept: tuple[Tensor | None, Tensor | None] = (None, None)  # positions that are not padding
        self._called: set[int] = set()

    def finish_run(self) -> bool:
        """Return whether the run filled the array; if not, plan the next run by what this one recorded."""
        if not self.layers_are_calls and self._repeats_modules():
            self.layers_are_calls = True
            counts = enumerate(self.heads_of_calls)
            self.planned_heads = {layer: heads for layer, heads in counts if self._is_requested(layer)}
            return False
        if self.recorded_heads == self.planned_heads:
            return True
        self.planned_heads = dict(sorted(self.recorded_heads.items()))
        return False

    @property
    def head_labels(self) -> tuple[str, ...]:
        return tuple(
            f"L{layer}H{head}"
            for layer, heads in self.planned_heads.items()
            for head in self.numbers.get(layer, range(heads))
        )

    def mask(self) -> NDArray[np.bool_] | None:
        """Return where queries may attend: [Q, K] if all heads agree, otherwise [Q, K, H]; None if everywhere."""
        masks = [self.masks[layer] for layer in self.planned_heads]
        first = masks[0]
        if all(mask is first for mask in masks) and (first is None or first.dim() == 2):
            return None if first is None else np.asarray(first)
        assert self.values is not None
        full = np.empty(self.values.shape, np.bool_)
        start = 0
        for mask, heads in zip(masks, self.planned_heads.values(), strict=True):
            part = torch.ones(full.shape[:2], dtype=torch.bool) if mask is None else mask
            full[:, :, start : start + heads] = part.movedim(0, 2) if part.dim() == 3 else part[:, :, None]
            start += heads
        return full

    def attend(
        self,
        attention: AttentionModule,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        """Run the model's eager attention and record it; query [1, H, Q, r], key and value [1, G, K, r]."""
        if query.shape[0] != 1:
            raise not_one_matrix(self.model_type, attention)
        layer = len(self.heads_of_calls) if self.layers_are_calls else attention.layer
        self.heads_of_calls.append(query.shape[1])
        self._called.add(id(attention.module))
        only_counting = not self.layers_are_calls and self._repeats_modules()
        if only_counting or not self._is_requested(layer):
            return attention.eager(attention.module, query, key, value, mask, **options)  # type: ignore[no-any-return]
        heads = self._heads_to_fill(attention, layer, query, key)
        mask = mask if mask is None else mask[(None,) * (4 - mask.dim())]  # [1, 1 or H, 1 or Q, K]
        rows = None
        if self.stage == "logits":
            with torch.autocast(query.device.type, enabled=False):
                logits = attention_logits(query, key, mask, options)  # [H, Q, K]
            # Padding may attend to nothing, so it is not compared.
            rows = torch.arange(query.shape[2]) if self.kept[0] is None else self.kept[0]
            rows = rows[torch.linspace(0, len(rows) - 1, min(CHECKED_QUERIES, len(rows))).long()]
            sample = logits[:, rows].clone()  # [H, rows, K]
            self._write(heads, logits)
            del logits  # the eager function computes its own below; two layers at once would double the memory
        output, weights = attention.eager(attention.module, query, key, value, mask, **options)
        if weights is None or weights.shape[1:] != (query.shape[1], query.shape[2], key.shape[2]):
            raise InputError(f"{self.model_type}: {attention.path} does not return its attention probabilities")
        if rows is not None:
            own = weights
            half = weights.dtype in (torch.float16, torch.bfloat16)
            if half or torch.is_autocast_enabled(query.device.type):  # they may round large logits by 1 or more
                mask = mask if mask is None or mask.dtype == torch.bool else mask.float()
                tensors = (query.float(), key.float(), value.float(), mask)
                with torch.autocast(query.device.type, enabled=False):
                    own = attention.eager(attention.module, *tensors, **options)[1]
            self._check_logits(attention, rows, sample, mask, own)
        else:
            self._write(heads, weights[0].float())
        self.masks[layer] = self._allowed(mask)
        return output, weights

    def _is_requested(self, layer: int) -> bool:
        return self.layers is None or layer in self.layers

    def _repeats_modules(self) -> bool:
        return len(self.heads_of_calls) > len(self._called)

    def _heads_to_fill(self, attention: AttentionModule, layer: int, query: Tensor, key: Tensor) -> slice:
        """Return the heads of the array that belong to `layer`; drop the array if they differ from the plan."""
        heads, lengths = query.shape[1], (query.shape[2], key.shape[2])
        if self.lengths is None:
            self.lengths = lengths
            self.kept = (self.padding_filters[0](lengths[0]), self.padding_filters[1](lengths[1]))
            self.planned_heads = self.planned_heads or {
                other.layer: heads for other in self.attentions if self._is_requested(other.layer)
            }
            self.values = self._allocate(sum(self.planned_heads.values()))
        elif lengths != self.lengths:
            raise InputError(
                f"{self.model_type}: {attention.path} has {lengths[0]} queries and {lengths[1]} keys, but the layers "
                f"before it have {self.lengths[0]} and {self.lengths[1]}; choose layers of one size with layers="
            )
        self.recorded_heads[layer] = heads
        if attention.location.numbers is not None:
            self.numbers[layer] = attention.location.numbers
        if self.planned_heads.get(layer) != heads:
            self.values = None
        start = sum(count for other, count in self.planned_heads.items() if other < layer)
        return slice(start, start + heads)

    def _allocate(self, heads: int) -> NDArray[np.float32]:
        assert self.lengths is not None
        shape = [length if kept is None else len(kept) for length, kept in zip(self.lengths, self.kept, strict=True)]
        size = 4 * shape[0] * shape[1] * heads
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else size
        if size > memory:
            raise InputError(
                f"{self.model_type}: {shape[0]} queries × {shape[1]} keys × {heads} heads need {size / 1e9:.0f} GB, "
                f"this machine has {memory / 1e9:.0f} GB; choose fewer layers or a shorter input"
            )
        return np.empty((*shape, heads), np.float32)

    def _write(self, heads: slice, layer: Tensor) -> None:
        """Copy layer [H, Q, K], without padding, to values[:, :, heads]."""
        if self.values is None:
            return
        layer = self._without_padding(layer).permute(1, 2, 0)  # [Q, K, H]
        if layer.is_cuda:
            layer = layer.contiguous().cpu()
        torch.from_numpy(self.values)[:, :, heads].copy_(layer)

    def _without_padding(self, layer: Tensor) -> Tensor:
        """Return layer [..., Q, K] at the positions that are not padding."""
        for axis, kept in zip((-2, -1), self.kept, strict=True):
            if kept is not None:
                layer = layer.index_select(axis, kept.to(layer.device))
        return layer

    def _allowed(self, mask: Tensor | None) -> Tensor | None:
        """Return the boolean mask [Q, K], or [heads, Q, K] if heads differ; an equal earlier mask is returned again."""
        if mask is None:
            return None
        assert self.lengths is not None
        allowed = self._without_padding(allowed_pairs(mask[0]).expand(-1, *self.lengths)).cpu()  # [1 or H, Q, K]
        if (allowed == allowed[:1]).all():
            allowed = allowed[0]  # [Q, K]
        if allowed.all():
            return None
        for earlier in self.masks.values():
            if earlier is not None and earlier.shape == allowed.shape and torch.equal(earlier, allowed):
                return earlier
        return allowed.clone()

    def _check_logits(
        self, attention: AttentionModule, rows: Tensor, logits: Tensor, mask: Tensor | None, weights: Tensor
    ) -> None:
        """Raise unless softmax(logits) gives the model's own probabilities, apart from a share that goes to a sink.

        rows:    [n], the queries compared
        logits:  [H, n, K]
        weights: [1, H, Q, K], the model's own probabilities
        """
        if mask is not None:
            allowed = allowed_pairs(mask[0].expand(-1, weights.shape[-2], -1)[:, rows.to(mask.device)])
            logits = logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)
        own = weights[0][:, rows.to(weights.device)].float()  # [H, n, K]
        if not own.isfinite().all():
            raise InputError(
                f"{self.model_type}: the attention probabilities of {attention.path} contain NaN on this input"
            )
        error = (logits.softmax(-1) - own / own.sum(-1, keepdim=True)).abs().max().item()
        tolerance = 1e-4 if weights.dtype in (torch.float32, torch.float64) else 5e-2
        if not error <= tolerance:
            raise InputError(
                f"{self.model_type}: {attention.path} does more than scaled products, soft-cap, bias and mask: the "
                f"softmax of the captured logits differs from the model's own probabilities by {error:.1g}"
            )
