"""Prove a model type: its own query·key products against the forms attngeo cuts from the saved checkpoint."""

from __future__ import annotations

import re
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attngeo.weights.attention import AttentionWeights
from attngeo.weights.layers import open_layers
from proof.feeds import call_attention, feeds
from proof.listen import Product, listening

TOLERANCE = 1e-4  # relative error of x M xᵀ, head by head
_QK_NORM = re.compile(r"(^|_)(q|k|query|key|qk|kv)(_a)?_?(layer)?_?(norm|ln)|norm_?(q|k)$|(q|k)_a_layernorm|layernorm_(q|k)$")


@dataclass
class Verdict:
    """What came of one model type."""

    model_type: str
    status: str  # right | refused | unproven | none | unbuilt
    reason: str = ""
    layers: int = 0
    stacks: dict[str, int] = field(default_factory=dict)
    qk_norm: bool = False
    unplaced: int = 0  # products through the interface that no extracted layer explains
    causal: bool | None = None
    worst: float = 0.0
    sites: dict[str, str] = field(default_factory=dict)  # template → right / mismatch / not run


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Weights that keep signals of order one, gains far from one, no bias: no two heads alike."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            if parameter.dim() >= 2 and "bias" not in name.split(".")[-1]:
                fan = parameter.shape[0] if _conv1d(model, name) else max(1, parameter[0].numel())
                if name.endswith(("embeddings.weight", "embed_tokens.weight", "wte.weight", "shared.weight")):
                    fan = 1
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan**0.5)
            elif "bias" in name or re.search(r"(_u|_v)$", name):
                parameter.zero_()
            elif parameter.dim() == 1 and parameter.abs().sum() == 0:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) * 0.6 - 0.3)
            elif parameter.dim() == 1:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) * 0.8 + 0.6)
        for name, parameter in model.named_parameters():
            if re.search(r"bias|pos_bias", name.split(".")[-1]):
                parameter.zero_()


def _conv1d(model: nn.Module, name: str) -> bool:
    return type(model.get_submodule(name.rpartition(".")[0])).__name__ == "Conv1D"


class GainOnly(nn.Module):
    """A norm on queries, keys or latents reduced to its gain, which is asked from the norm itself."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        ones = torch.ones_like(x)
        ones[..., 1::2] = -1  # mean 0, mean square 1: any norm leaves it alone but for the gain
        return x * (self.norm(ones, *args, **kwargs) * ones)


def reduce_norms(model: nn.Module) -> int:
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if _QK_NORM.search(name) and not any(child.children())
    ]
    for parent, name, child in found:
        setattr(parent, name, GainOnly(child))
    return len(found)


def agreement(weights: AttentionWeights, product: Product) -> float:
    """Smallest over the candidate inputs of the largest relative error over heads; inf where nothing fits."""
    heads, width, _ = weights.query.shape
    groups, key_width, _ = weights.key.shape
    count, rows, size = product.query.shape
    if count % heads:
        return float("inf")
    batch = count // heads
    query_inputs = _inputs(product, batch * rows, width)
    key_inputs = _inputs(product, batch * product.key.shape[1], key_width)
    if not query_inputs or not key_inputs:
        return float("inf")
    key = product.key
    if key.shape[0] != count:
        if count % key.shape[0] or key.shape[0] % batch:
            return float("inf")
        key = key.reshape(batch, -1, *key.shape[1:]).repeat_interleave(count // key.shape[0], 1).reshape(count, *key.shape[1:])
    live = product.query @ key.transpose(-1, -2)  # [batch·H, N, M]
    w_q, w_k = torch.from_numpy(np.ascontiguousarray(weights.query)), torch.from_numpy(np.ascontiguousarray(weights.key))
    best = float("inf")
    for axis in (0, 1) if batch > 1 else (0,):
        shape = (batch, heads) if axis == 0 else (heads, batch)
        logits = live.reshape(*shape, *live.shape[1:])
        logits = logits if axis == 0 else logits.transpose(0, 1)  # [batch, H, N, M]
        for x_q in query_inputs:
            q = torch.einsum("bnd,hdr->bhnr", x_q.reshape(batch, rows, width), w_q)
            for x_k in [x_q] if any(x_q is t for t in key_inputs) and not weights.cross else key_inputs:
                k = torch.einsum("bmd,gdr->bgmr", x_k.reshape(batch, -1, key_width), w_k)
                best = min(best, _error(logits, q @ k.repeat_interleave(heads // groups, 1).transpose(-1, -2)))
                if best < TOLERANCE:
                    return best
    return best


def _inputs(product: Product, tokens: int, width: int) -> list[Tensor]:
    """Distinct recorded inputs of the right shape, latest first."""
    found: list[Tensor] = []
    for projection in reversed(product.before):
        x = projection.tokens
        if x.shape == (tokens, width) and not any(torch.equal(x, other) for other in found):
            found.append(x)
    return found[:8]


def _error(live: Tensor, ours: Tensor) -> float:
    """One positive scale for the layer, then the worst relative error over heads."""
    scale = (live * ours).sum() / (ours * ours).sum().clamp_min(1e-30)
    if not torch.isfinite(scale) or scale <= 0:
        return float("inf")
    difference = (live - scale * ours).pow(2).sum((0, 2, 3)).sqrt()
    return float((difference / live.pow(2).sum((0, 2, 3)).sqrt().clamp_min(1e-30)).max())


def swap_fails(weights: AttentionWeights, product: Product) -> bool:
    """Exchanging two query heads must be noticed (for one head: exchanging query and key)."""
    from dataclasses import replace

    if weights.query.shape[0] < 2:
        wrong = replace(weights, query=weights.key, key=weights.query)
    else:
        order = np.arange(weights.query.shape[0])
        order[[0, -1]] = order[[-1, 0]]
        wrong = replace(weights, query=weights.query[order])
    return agreement(wrong, product) > 1e-2


def hear_model(model: nn.Module, config: Any) -> tuple[list[Product], list[str]]:
    """Run the model, then each model inside it, on made-up inputs; all products heard, and what failed."""
    heard: list[Product] = []
    errors: list[str] = []
    inner = [(name, module) for name, module in model.named_modules() if isinstance(module, PreTrainedModel)]
    for name, module in inner or [("", model)]:
        for feed in feeds(module, getattr(module, "config", config)):
            with listening() as ear, torch.no_grad():
                try:
                    module(**feed)
                except Exception as error:
                    errors.append(f"{name or type(module).__name__}({', '.join(feed)}): {type(error).__name__}: {str(error)[:120]}")
                    heard += ear.products  # what was heard before it failed counts
                    continue
            heard += ear.products
            break
    return heard, errors


def hear_attention(model: nn.Module, weights: AttentionWeights, tensor: Tensor) -> list[Product]:
    """Call the attention module that owns `tensor` by itself."""
    for name, parameter in model.named_parameters():
        if parameter.shape == tensor.shape and torch.equal(parameter, tensor):
            break
    else:
        return []
    words = name.split(".")
    heard: list[Product] = []
    for depth in range(len(words) - 1, max(len(words) - 4, 0), -1):
        module = model.get_submodule(".".join(words[:depth]))
        if isinstance(module, (nn.Linear, nn.ModuleList, nn.Embedding)) or type(module).forward is nn.Module.forward:
            continue
        for feed in call_attention(module, weights.query.shape[1], weights.key.shape[1]):
            with listening() as ear, torch.no_grad(), warnings.catch_warnings():
                try:
                    module(**feed)
                except Exception:
                    pass
            heard += ear.products
            if any(agreement(weights, product) < TOLERANCE for product in ear.products):
                return ear.products
    return heard


def prove_model(model: PreTrainedModel, model_type: str) -> Verdict:
    """Save the model, cut its forms from the files, run it, and compare."""
    model = model.eval().float()
    randomise(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        (Path(folder) / "config.json").exists()
        with open_layers(folder, unproven=True) as layers:
            extracted = list(layers)
            stored = {w.tensors[0]: torch.from_numpy(layers.checkpoint.read(_want(w.tensors[0]))) for w in extracted}
            templates = [plan.site.template for plan in layers.plans]
    reduced = reduce_norms(model)
    heard, errors = hear_model(model, model.config)
    verdict = Verdict(model_type, "right", layers=len(extracted))
    used = [False] * len(heard)
    for weights, template in zip(extracted, templates, strict=True):
        verdict.stacks[weights.stack] = verdict.stacks.get(weights.stack, 0) + 1
        result = _judge(weights, heard, used, verdict)
        if result != "right":
            more = hear_attention(model, weights, stored[weights.tensors[0]])
            result = _judge(weights, more, [False] * len(more), verdict) if more else "not run"
        if verdict.sites.get(template, "right") == "right":
            verdict.sites[template] = result
    verdict.qk_norm = reduced > 0
    verdict.unplaced = sum(not u for u, product in zip(used, heard, strict=True) if product.interface)
    bad = {t: r for t, r in verdict.sites.items() if r != "right"}
    if bad:
        verdict.status = "refused" if "mismatch" in bad.values() else "unproven"
        verdict.reason = "; ".join(f"{t}: {r}" for t, r in bad.items()) + (f" [{errors[0]}]" if errors else "")
    return verdict


def _judge(weights: AttentionWeights, heard: list[Product], used: list[bool], verdict: Verdict) -> str:
    nearest = float("inf")
    right = False
    for index, product in enumerate(heard):
        error = agreement(weights, product)
        if error < TOLERANCE:
            if not right and not swap_fails(weights, product):
                return "swapped heads go unnoticed"
            used[index], right = True, True
            verdict.worst = max(verdict.worst, error)
        nearest = min(nearest, error)
    if right:
        return "right"
    return "mismatch" if nearest < float("inf") else "not run"


def _want(name: str) -> Any:
    from attngeo.weights.checkpoint import Want

    return Want(name)
