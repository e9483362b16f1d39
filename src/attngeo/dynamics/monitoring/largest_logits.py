"""The largest attention logits of a model on a few rows: one pass without gradients that leaves no trace in training.

Whatever calls `scaled_dot_product_attention` is heard: its queries and keys are the ones the model multiplies,
position embedding and normalisation included. Modules hooked for the time of the pass say whose they are.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

MASKED = -1e4  # an additive mask this low shuts a key out; no position bias reaches it
TOGETHER = 2**26  # logits held at once


class Listening(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Keeps the largest |logit| of every head [H] of the layers `now` goes through, -1 where no layer is known."""

    def __init__(self) -> None:
        super().__init__()
        self.now = -1
        self.heard: list[tuple[int, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self.heard.append((self.now, largest(*args, **(kwargs or {}))))
        return func(*args, **(kwargs or {}))

    def of_layers(self, count: int) -> list[Tensor | None]:
        """By layer; a layer used several times has the largest of all."""
        heard = self.heard
        if len(heard) == count and all(layer < 0 for layer, _ in heard):
            heard = [(at, logit) for at, (_, logit) in enumerate(heard)]  # no modules to tell: in order of use
        found: list[Tensor | None] = [None] * count
        for layer, logit in heard:
            if layer >= 0:
                before = found[layer]
                found[layer] = logit if before is None or before.shape != logit.shape else before.maximum(logit)
        return found


def largest(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """max |c·q kᵀ + bias| [H] over the rows of a batch and the pairs a query may attend to; q [..., H, Q, r]."""
    heads = query.shape[-3] if query.dim() > 3 else 1
    with torch.autocast(query.device.type, enabled=False):
        query, key = query.float(), key.float()
        if query.dim() > 3 and key.shape[-3] != heads:
            key = key.repeat_interleave(heads // key.shape[-3], -3)  # head h reads key head h // (H/G)
        query = query * (query.shape[-1] ** -0.5 if scale is None else scale)
        found = []
        step = max(1, TOGETHER // max(1, query[..., :1, 0].numel() * key.shape[-2]))
        for start in range(0, query.shape[-2], step):
            rows = slice(start, min(start + step, query.shape[-2]))
            logits = query[..., rows, :] @ key.mT  # [..., H, rows, K]
            if is_causal:
                logits = logits.tril(start)
            if attn_mask is not None:
                mask = attn_mask[..., rows, :] if attn_mask.shape[-2] > 1 else attn_mask
                seen = mask if mask.dtype == torch.bool else mask > MASKED
                logits = (logits if mask.dtype == torch.bool else logits + mask).masked_fill(~seen, 0)
            others = [axis for axis in range(logits.dim()) if axis != logits.dim() - 3 or logits.dim() < 4]
            found.append(logits.abs().amax(others).reshape(heads))
        return torch.stack(found).amax(0)


def logits_on(model: nn.Module, attentions: Sequence[nn.Module | None], batch: Any, alone: bool) -> list[Tensor | None]:
    """The largest |logit| [H] of each of the modules `attentions` when `model` runs on `batch`; None if not heard.

    alone  this process runs by itself, so the work after the last attention can be spared where transformers allows
    """
    listening = Listening()
    with at_rest(model), ExitStack() as hooks:
        for at, module in enumerate(attentions):
            if module is not None:
                enter, leave = _marks(listening, at)
                hooks.callback(module.register_forward_pre_hook(enter).remove)
                hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        with listening:
            if isinstance(batch, Mapping):
                model(**(_spared(model, batch) if alone else batch))
            elif isinstance(batch, (list, tuple)):
                model(*batch)
            else:
                model(batch)
    return listening.of_layers(len(attentions))


def _marks(listening: Listening, at: int) -> tuple[Any, Any]:
    before: list[int] = []

    def enter(*_: Any) -> None:
        before.append(listening.now)
        listening.now = at

    def leave(*_: Any) -> None:
        listening.now = before.pop()

    return enter, leave


def _spared(model: Any, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without a loss, a cache and most of the output, where the model can do without."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "_attn_implementation_internal") or getattr(config, "is_encoder_decoder", False):
        return batch
    takes = inspect.signature(type(model).forward).parameters
    extra = {name: value for name, value in (("use_cache", False), ("logits_to_keep", 1)) if name in takes}
    return {name: value for name, value in batch.items() if name != "labels"} | extra


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Dropout off, nothing compiled, no gradients, attention by SDPA; afterwards all is as it was, chance included."""
    modules = list(model.modules())
    training = [vars(module) for module in modules if module.training]  # past nn.Module's own slow way of setting
    found: list[Any] = [vars(module).get("config") for module in modules]
    configs = {id(one): one for one in found if hasattr(one, "_attn_implementation_internal")}.values()
    ways = [(config, config._attn_implementation_internal) for config in configs]
    device = next(model.parameters()).device
    own = [device.index or 0] if device.type == "cuda" else []
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # a few rows now and then are no reason to compile for their shape
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if torch.is_autocast_enabled(device.type):  # casts made without gradients must not be kept for training
            kind = torch.get_autocast_dtype(device.type)
            stack.enter_context(torch.autocast(device.type, dtype=kind, cache_enabled=False))
        stack.enter_context(torch.random.fork_rng(own))
        # Not inference_mode: tables a live model makes and keeps on the way must stay fit for training.
        stack.enter_context(torch.no_grad())
        try:
            for module in training:
                module["training"] = False
            if getattr(model, "_supports_sdpa", False):
                for config in configs:
                    config._attn_implementation_internal = "sdpa"
            yield
        finally:
            for module in training:
                module["training"] = True
            for config, way in ways:
                config._attn_implementation_internal = way


def first_rows(batch: Any, count: int, device: torch.device) -> Any:
    """The first rows of every tensor of a batch, on the device."""
    if isinstance(batch, Tensor):
        return (batch[:count] if batch.dim() else batch).to(device)
    if isinstance(batch, Mapping):
        return {name: first_rows(part, count, device) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [first_rows(part, count, device) for part in batch]
    return batch


def opening_rows(loader: Any, count: int) -> Any:
    """The first items of a loader's data set, collated; None where it cannot be asked for single items."""
    dataset: Any = getattr(loader, "dataset", None)
    collate: Any = getattr(loader, "collate_fn", None)
    if collate is None or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return None
    with _undisturbed(collate):
        return collate([dataset[at] for at in range(min(count, len(dataset)))])


@contextmanager
def _undisturbed(collate: Any) -> Iterator[None]:
    """Masks and crops are drawn here without moving what training draws from."""
    import random

    import numpy as np

    own = getattr(collate, "data_collator", collate)  # Trainer wraps the collator it was given
    plain, arrays = random.getstate(), np.random.get_state()
    seeded = hasattr(own, "generator")
    before = own.generator if seeded else None
    try:
        if seeded:
            own.generator = copy.deepcopy(before)
        with torch.random.fork_rng([]):
            yield
    finally:
        if seeded:
            own.generator = before
        random.setstate(plain)
        np.random.set_state(arrays)
