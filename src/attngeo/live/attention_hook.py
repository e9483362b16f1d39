"""An attention function for transformers that attends as the model itself would and writes down what it saw."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from attngeo.errors import InputError
from attngeo.live.attention_modules import Attention, Stack

NAME = "attngeo_capture"
MASKED = -1e4  # an additive mask this low shuts a key out; no position bias reaches it
ROWS = 8  # queries of every layer on which the logits are held against the model's own probabilities

Cut = Callable[[int], Any]  # length of an axis → the positions that are not padding, None for all


class Recorder:
    """Fills one tensor while a model runs; where its guess of the layers to come proves wrong, it only counts them.

    The guess: every attention of the stack is used once, all with as many heads as the first. What a run found
    replaces it, so a model is run twice at most, and memory holds the tensor and one layer.
    """

    def __init__(
        self, kind: str, stack: Stack, layers: Collection[int] | None, stage: str, cuts: tuple[Cut, Cut]
    ) -> None:
        self.kind, self.stack, self.stage, self.cuts = kind, stack, stage, cuts
        self.layers = None if layers is None else frozenset(layers)
        self.by_module = {id(one.module): one for one in stack.attentions}
        self.plan: dict[int, int] = {}  # layer → heads
        self.shared = False  # modules are used more than once: layers are counted as they come
        self.begin()

    def begin(self) -> None:
        """Before every run."""
        self.values: NDArray[np.float32] | None = None  # [Q, K, H]
        self.masks: dict[int, Any] = {}  # layer → bool [Q, K] or [heads, Q, K], None where everything may be seen
        self.found: dict[int, int] = {}  # layer → heads, as they come
        self.sequence: list[int] = []  # heads of every use of a module of the stack
        self.lengths: tuple[int, int] | None = None  # of the axes before padding is cut off
        self.kept: tuple[Any, Any] = (None, None)
        self._used: set[int] = set()
        self._entered: set[int] = set()

    def complete(self) -> bool:
        """Whether the last run filled the tensor; if not, what it found is the plan of the next."""
        if not self.shared and len(self.sequence) > len(self._used):
            self.shared = True
            self.plan = {layer: heads for layer, heads in enumerate(self.sequence) if self._wants(layer)}
            return False
        if self.found == self.plan:
            return True
        self.plan = dict(sorted(self.found.items()))
        return False

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(f"L{layer}H{head}" for layer, heads in self.plan.items() for head in range(heads))

    def mask(self) -> NDArray[np.bool_] | None:
        """[Q, K] where all heads see the same, else [Q, K, H]; None where every query sees every key."""
        masks = [self.masks[layer] for layer in self.plan]
        first = masks[0]
        if all(mask is first for mask in masks) and (first is None or first.dim() == 2):
            return None if first is None else np.asarray(first)
        assert self.values is not None
        full = np.empty(self.values.shape, np.bool_)
        start = 0
        for mask, heads in zip(masks, self.plan.values(), strict=True):
            part = torch.ones(full.shape[:2], dtype=torch.bool) if mask is None else mask
            full[:, :, start : start + heads] = part.movedim(0, 2) if part.dim() == 3 else part[:, :, None]
            start += heads
        return full

    def entered(self, module: Any, *_: Any) -> None:
        """A module's forward begins: it may attend once."""
        self._entered.add(id(module))

    def attend(self, one: Attention, query: Any, key: Any, value: Any, mask: Any, kwargs: dict[str, Any]) -> Any:
        """Attend in the model's own plain way; query [1, H, Q, r], key [1, G, K, r]."""
        if id(one.module) not in self._entered or query.dim() != 4 or query.shape[0] != 1:
            raise InputError(f"{self.kind}: {one.path} attends piece by piece (windows or blocks), not as one matrix")
        self._entered.discard(id(one.module))
        layer = len(self.sequence) if self.shared else one.layer
        self.sequence.append(query.shape[1])
        self._used.add(id(one.module))
        counting = not self.shared and len(self.sequence) > len(self._used)
        if counting or not self._wants(layer):
            return one.eager(one.module, query, key, value, mask, **kwargs)
        span = self._span(one, layer, query, key)
        mask = mask if mask is None else mask[(None,) * (4 - mask.dim())]  # [1, 1 or H, 1 or Q, K]
        rows = None
        if self.stage == "logits":
            logits = attention_logits(query, key, mask, kwargs)  # [H, Q, K]
            rows = torch.linspace(0, query.shape[2] - 1, min(ROWS, query.shape[2])).long()
            sample = logits[:, rows].clone()
            self._write(span, logits)
            del logits  # one layer at a time: the model makes its own below
        output, weights = one.eager(one.module, query, key, value, mask, **kwargs)
        if weights is None or weights.shape[1:] != (query.shape[1], query.shape[2], key.shape[2]):
            raise InputError(f"{self.kind}: {one.path} does not give its attention probabilities")
        if rows is not None:
            self._compare(one, rows, sample, mask, weights)
        else:
            self._write(span, weights[0].float())
        self.masks[layer] = self._allowed(mask)
        return output, weights

    def _wants(self, layer: int) -> bool:
        return self.layers is None or layer in self.layers

    def _span(self, one: Attention, layer: int, query: Any, key: Any) -> tuple[int, int]:
        """The heads of the tensor this layer fills; the tensor is dropped when they are not those planned."""
        heads, lengths = query.shape[1], (query.shape[2], key.shape[2])
        if self.lengths is None:
            self.lengths = lengths
            self.kept = (self.cuts[0](lengths[0]), self.cuts[1](lengths[1]))
            self.plan = self.plan or {other.layer: heads for other in self.stack.attentions if self._wants(other.layer)}
            self.values = self._room(sum(self.plan.values()))
        elif lengths != self.lengths:
            raise InputError(
                f"{self.kind}: {one.path} has {lengths[0]} queries and {lengths[1]} keys, the layers before it "
                f"{self.lengths[0]} and {self.lengths[1]}; choose layers of one size with layers="
            )
        self.found[layer] = heads
        if self.plan.get(layer) != heads:
            self.values = None
        start = sum(count for other, count in self.plan.items() if other < layer)
        return start, start + heads

    def _room(self, heads: int) -> NDArray[np.float32]:
        assert self.lengths is not None
        shape = [length if kept is None else len(kept) for length, kept in zip(self.lengths, self.kept, strict=True)]
        size = 4 * shape[0] * shape[1] * heads
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else size
        if size > memory:
            raise InputError(
                f"{self.kind}: {shape[0]} queries × {shape[1]} keys × {heads} heads need {size / 1e9:.0f} GB, this "
                f"machine has {memory / 1e9:.0f}; take fewer layers or a shorter input"
            )
        return np.empty((*shape, heads), np.float32)

    def _write(self, span: tuple[int, int], layer: Any) -> None:
        """layer [H, Q, K] → values[:, :, span]."""
        if self.values is None:
            return
        layer = self._trimmed(layer).permute(1, 2, 0)  # [Q, K, H]
        if layer.is_cuda:
            layer = layer.contiguous().cpu()
        torch.from_numpy(self.values)[:, :, span[0] : span[1]].copy_(layer)

    def _trimmed(self, layer: Any) -> Any:
        """Without its padding: layer [..., Q, K]."""
        for axis, kept in zip((-2, -1), self.kept, strict=True):
            if kept is not None:
                layer = layer.index_select(axis, kept.to(layer.device))
        return layer

    def _allowed(self, mask: Any) -> Any:
        """True where a query may attend: [Q, K], or [heads, Q, K] where heads differ; the same object if unchanged."""
        if mask is None:
            return None
        assert self.lengths is not None
        allowed = self._trimmed(_seen(mask[0]).expand(-1, *self.lengths)).cpu()
        if (allowed == allowed[:1]).all():
            allowed = allowed[0]
        if allowed.all():
            return None
        for seen in self.masks.values():
            if seen is not None and seen.shape == allowed.shape and torch.equal(seen, allowed):
                return seen
        return allowed.clone()

    def _compare(self, one: Attention, rows: Any, logits: Any, mask: Any, weights: Any) -> None:
        """The logits must give the model's own probabilities, up to a share that went to a sink."""
        if mask is not None:
            seen = _seen(mask[0].expand(-1, weights.shape[-2], -1)[:, rows.to(mask.device)])
            logits = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
        own = weights[0][:, rows.to(weights.device)].float()
        if not own.isfinite().all():
            raise InputError(f"{self.kind}: {one.path} gives probabilities that are no numbers on this input")
        error = (logits.softmax(-1) - own / own.sum(-1, keepdim=True)).abs().max().item()
        tolerance = 1e-4 if weights.dtype in (torch.float32, torch.float64) else 5e-2
        if not error <= tolerance:
            raise InputError(
                f"{self.kind}: {one.path} does more than scaled products, soft-cap, bias and mask: the softmax of "
                f"these logits differs from its own probabilities by {error:.1g}"
            )


def _seen(mask: Any) -> Any:
    """True where a mask, additive or not, lets a key be seen."""
    return mask if mask.dtype == torch.bool else mask > MASKED


def attention_logits(query: Any, key: Any, mask: Any, kwargs: Mapping[str, Any]) -> Any:
    """[H, Q, K] float32 c·q kᵀ, soft-capped, plus the position bias; before the mask.

    The bias comes as an argument (T5) or as what an additive mask holds where it does not shut keys out (BEiT).
    """
    query, key = query[0].float(), key[0].float()
    if query.shape[0] != key.shape[0]:
        key = key.repeat_interleave(query.shape[0] // key.shape[0], 0)  # head h reads key head h // (H/G)
    scale = kwargs.get("scaling")
    logits = (query @ key.transpose(1, 2)).mul_(query.shape[-1] ** -0.5 if scale is None else scale)  # [H, Q, K]
    if kwargs.get("softcap") is not None:
        logits.div_(kwargs["softcap"]).tanh_().mul_(kwargs["softcap"])
    if kwargs.get("position_bias") is not None:
        logits += kwargs["position_bias"][0]
    if mask is not None and mask.dtype != torch.bool:
        bias = mask[0].float()
        bias = bias.masked_fill(bias <= MASKED, 0)
        if bias.any():
            logits += bias
    return logits


class Hearer(Protocol):
    """Whatever the attention of a model can be sent to."""

    stack: Stack
    by_module: dict[int, Attention]

    def entered(self, module: Any, *_: Any) -> None: ...

    def attend(self, one: Attention, query: Any, key: Any, value: Any, mask: Any, kwargs: dict[str, Any]) -> Any: ...


_recorder: ContextVar[tuple[Hearer, Mapping[int, Attention]]] = ContextVar("recorder")


def _attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
    recorder, others = _recorder.get()
    if (one := recorder.by_module.get(id(module))) is not None:
        return recorder.attend(one, query, key, value, attention_mask, kwargs)
    if (one := others.get(id(module))) is not None:
        return one.eager(module, query, key, value, attention_mask, **kwargs)
    return AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **kwargs)


@contextmanager
def recording(model: Any, stacks: Mapping[str, Stack], recorder: Hearer) -> Iterator[None]:
    """The model attends through `recorder`, dropout off; afterwards, whatever happens, it is as it was."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, eager_mask)
    configs = _configs(model)
    ways = [config._attn_implementation_internal for config in configs]
    training = [module for module in model.modules() if module.training]
    hooks = [one.module.register_forward_pre_hook(recorder.entered) for one in recorder.stack.attentions]
    others = {id(one.module): one for stack in stacks.values() for one in stack.attentions}
    token = _recorder.set((recorder, others))
    try:
        for config in configs:
            config._attn_implementation_internal = NAME
        for module in training:
            module.training = False
        # Not inference_mode: tables a live model makes and keeps on the way must stay fit for training.
        with torch.no_grad():
            yield
    finally:
        _recorder.reset(token)
        for hook in hooks:
            hook.remove()
        for module in training:
            module.training = True
        for config, way in zip(configs, ways, strict=True):
            config._attn_implementation_internal = way


def _configs(model: Any) -> list[Any]:
    """Every configuration a part of the model may ask, each once."""
    found: dict[int, Any] = {}
    waiting = [module.config for module in model.modules() if hasattr(module, "config")]
    while waiting:
        config = waiting.pop()
        if id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            continue
        found[id(config)] = config
        waiting += [getattr(config, name, None) for name in config.sub_configs]
    return list(found.values())
