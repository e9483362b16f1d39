"""Prove a model type: its own query·key products against the forms attngeo cuts from the saved checkpoint."""

from __future__ import annotations

import contextlib
import re
import tempfile
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attngeo.errors import LayoutError
from attngeo.weights.layout import families
from attngeo.weights.layout.attention_weights import AttentionWeights
from attngeo.weights.layout.config_scope import width
from attngeo.weights.layout.head_counts import count_heads
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.layout.site import Site
from attngeo.weights.layout.sites import find_sites
from attngeo.weights.sources.checkpoint import ReadRequest
from attngeo.weights.sources.open import open_checkpoint
from tools.proof.feeds import call_attention, feeds
from tools.proof.learn import is_causal, norm_facts, norm_of, norm_rule
from tools.proof.listen import Product, listening

TOLERANCE = 1e-4  # relative error of x M xᵀ, head by head
_QK_NORM = re.compile(
    r"(^|_)(q|k|query|key|qk|kv)(_a)?_?(layer)?_?(norm|ln)|norm_?(q|k)$|(q|k)_a_layernorm|layernorm_(q|k)$"
)


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
    width: bool = False  # every tower is as wide as its config says
    offset: bool = False  # norms multiply by 1 + weight
    norms: list[dict[str, Any]] = field(default_factory=list)
    skip: list[str] = field(default_factory=list)
    worst: float = 0.0
    sites: dict[str, str] = field(default_factory=dict)  # template → right / mismatch / not run
    note: str = ""  # for the coverage page


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Weights that keep signals of order one, gains far from one, no bias: no two heads alike."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point() or parameter.numel() == 0:
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

    def __getattr__(self, name: str) -> Any:
        """A model that reads its norm's weight or epsilon finds them."""
        if name == "norm":
            return super().__getattr__(name)
        return getattr(super().__getattr__("norm"), name)

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


def restore_norms(model: nn.Module) -> None:
    """Undo `reduce_norms`: the saved names must be the model's own."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, GainOnly):
                setattr(parent, name, child.norm)


def agreement(weights: AttentionWeights, product: Product) -> float:
    """Smallest over the candidate inputs of the largest relative error over heads; inf where nothing fits."""
    return compare(weights, product)[0]


def compare(weights: AttentionWeights, product: Product) -> tuple[float, Tensor | None]:
    """`agreement` and the input x of the queries [T, d] that gave it."""
    nothing = float("inf"), None
    heads, width, _ = weights.query.shape
    groups, key_width, _ = weights.key.shape
    count, rows, _ = product.query.shape
    if count % heads:
        return nothing
    batch = count // heads
    query_inputs = _inputs(product, batch * rows, width)
    key_inputs = _inputs(product, batch * product.key.shape[1], key_width)
    if not query_inputs or not key_inputs:
        return nothing
    key = product.key
    if key.shape[0] != count:
        if count % key.shape[0] or key.shape[0] % batch:
            return nothing
        key = (
            key.reshape(batch, -1, *key.shape[1:])
            .repeat_interleave(count // key.shape[0], 1)
            .reshape(count, *key.shape[1:])
        )
    live = product.query @ key.transpose(-1, -2)  # [batch·H, N, M]
    w_q, w_k = (
        torch.from_numpy(np.ascontiguousarray(weights.query)),
        torch.from_numpy(np.ascontiguousarray(weights.key)),
    )
    best: tuple[float, Tensor | None] = nothing
    for axis in (0, 1) if batch > 1 else (0,):
        shape = (batch, heads) if axis == 0 else (heads, batch)
        logits = live.reshape(*shape, *live.shape[1:])
        logits = logits if axis == 0 else logits.transpose(0, 1)  # [batch, H, N, M]
        for x_q in query_inputs:
            q = torch.einsum("bnd,hdr->bhnr", x_q.reshape(batch, rows, width), w_q)
            for x_k in [x_q] if any(x_q is t for t in key_inputs) and not weights.cross else key_inputs:
                k = torch.einsum("bmd,gdr->bgmr", x_k.reshape(batch, -1, key_width), w_k)
                error = _error(logits, q @ k.repeat_interleave(heads // groups, 1).transpose(-1, -2))
                if error < best[0]:
                    best = error, x_q
                if error < TOLERANCE:
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
            with listening(model) as ear, torch.no_grad():
                try:
                    module(**feed)
                except Exception as error:
                    what = f"{name or type(module).__name__}({', '.join(feed)})"
                    errors.append(f"{what}: {type(error).__name__}: {str(error)[:120]}")
                    heard += ear.products  # what was heard before it failed counts
                    continue
            heard += ear.products
            break
    return heard, errors


def hear_attention(model: nn.Module, weights: AttentionWeights, tensor: Tensor) -> list[Product]:
    """Call the attention module that owns `tensor` by itself."""
    owners = (n for n, p in model.named_parameters() if p.shape == tensor.shape and torch.equal(p, tensor))
    words = next(owners, "").split(".")
    heard: list[Product] = []
    for depth in range(len(words) - 1, max(len(words) - 4, 0), -1):
        module = model.get_submodule(".".join(words[:depth]))
        if isinstance(module, (nn.Linear, nn.ModuleList, nn.Embedding)) or type(module).forward is nn.Module.forward:
            continue
        for feed in call_attention(module, weights.query.shape[1], weights.key.shape[1]):
            with listening() as ear, torch.no_grad(), contextlib.suppress(Exception):
                module(**feed)
            heard += ear.products
            if any(agreement(weights, product) < TOLERANCE for product in ear.products):
                return ear.products
    return heard


def prove_model(model: PreTrainedModel, model_type: str) -> Verdict:
    """Save the model, cut its forms from the files, run it, and compare."""
    model = model.eval().float()
    randomise(model)
    reduced = reduce_norms(model)
    offset = _offset(model)
    with tempfile.TemporaryDirectory() as folder:
        restore_norms(model)
        model.save_pretrained(folder)
        tell(model_type, offset=offset)
        uncountable = _uncountable(folder)
        cut = read_layers(folder)
    reduce_norms(model)
    verdict = Verdict(model_type, "right", qk_norm=reduced > 0, offset=offset, sites=uncountable)
    return judge_layers(model, cut, verdict)


Cut = tuple[list[AttentionWeights], list[Site], dict[str, Tensor]]


def read_layers(ref: Any) -> Cut:
    """What attngeo cuts from a checkpoint, where it found it, and the tensors the comparison looks at again."""
    with open_layers(ref, unproven=False) as layers:
        extracted = list(layers)
        sites = [plan.site for plan in layers.plans]
        names = layers.checkpoint.tensors
        stored = {name: torch.from_numpy(layers.checkpoint.read(ReadRequest(name))) for name in _small(names, sites)}
    return extracted, sites, stored


def judge_layers(model: nn.Module, cut: Cut, verdict: Verdict) -> Verdict:
    """Fill `verdict` with what the live model says about every layer that was cut."""
    extracted, sites, stored = cut
    verdict.layers = len(extracted)
    verdict.width = all(map(_as_told, extracted, sites))
    uncountable = dict(verdict.sites)
    verdict.sites.clear()
    heard, errors = hear_model(model, model.config)
    used = [False] * len(heard)
    for weights, site in zip(extracted, sites, strict=True):
        verdict.stacks[weights.stack] = verdict.stacks.get(weights.stack, 0) + 1
        result, product, tokens = _judge(weights, heard, used, verdict)
        if result != "right" and (more := hear_attention(model, weights, stored[site.query])):
            result, product, tokens = _judge(weights, more, [False] * len(more), verdict)
        if product is not None and tokens is not None and not weights.cross:
            _learn_norm(model, site.path, product, tokens, stored, verdict)
        if verdict.sites.get(site.template, "right") == "right":
            verdict.sites[site.template] = result
    verdict.unplaced = sum(not u for u, product in zip(used, heard, strict=True) if product.interface)
    verdict.causal = is_causal(model, model.config)
    verdict.sites.update(uncountable)
    cross = {site.template for site in sites if site.cross}
    bad = {t: r for t, r in verdict.sites.items() if r != "right"}
    verdict.skip = list(bad)
    verdict.reason = "; ".join(f"{t}: {r}" for t, r in bad.items()) + (f" [{errors[0]}]" if bad and errors else "")
    if not any(r == "right" for t, r in verdict.sites.items() if t not in cross):
        verdict.status = "refused" if "mismatch" in bad.values() else "unproven"
    return verdict


def _uncountable(folder: str) -> dict[str, str]:
    """Templates whose heads cannot be counted are left out; the rest of the model can still be proved."""
    with open_checkpoint(folder) as checkpoint:
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        found: dict[str, str] = {}
        for site in find_sites(shapes, checkpoint.config):
            try:
                if count_heads(site, shapes, None).heads is None:
                    found[site.template] = "no head count"
            except LayoutError as error:
                found[site.template] = str(error)
        tell(str(checkpoint.config["model_type"]), skip=list(found), status="right")
    return found


def _as_told(weights: AttentionWeights, site: Site) -> bool:
    """Are the tokens of this layer as wide as its part of the config says?"""
    told = width(site.scope) if site.scope is not None else None
    return weights.cross or told is None or told[1] == weights.query.shape[1]


def tell(model_type: str, **facts: Any) -> None:
    """Let attngeo know a fact about the type while it is being proved."""
    known = cast(dict[str, Any], families.families())
    known[model_type] = {**known.get(model_type, {}), **facts}
    families.family.cache_clear()


def _small(names: Any, sites: Any) -> list[str]:
    """Tensors the comparison looks at again: the query weights and every vector."""
    queries = {site.query for site in sites}
    return [
        name
        for name, info in names.items()
        if name in queries or (len(info.shape) == 1 and info.dtype.startswith(("F", "BF")))
    ]


def _offset(model: nn.Module) -> bool:
    """Do the norms on queries and keys multiply by 1 + weight?"""
    for module in model.modules():
        weight = getattr(module.norm, "weight", None) if isinstance(module, GainOnly) else None
        if weight is not None and weight.dim() == 1:
            _, gain = norm_facts(module.norm, weight.shape[0])
            return torch.allclose(gain, 1 + weight, atol=1e-4)
    return False


def _learn_norm(model: nn.Module, site: str, product: Product, tokens: Tensor, stored: Any, verdict: Verdict) -> None:
    norm = norm_of(model, product, tokens)
    rule = None if norm is None else norm_rule(site, stored, norm, tokens.shape[1])
    if rule is not None and rule not in verdict.norms:
        verdict.norms.append(rule)


def _judge(
    weights: AttentionWeights, heard: list[Product], used: list[bool], verdict: Verdict
) -> tuple[str, Product | None, Tensor | None]:
    nearest = float("inf")
    match: tuple[Product | None, Tensor | None] = None, None
    for index, product in enumerate(heard):
        error, tokens = compare(weights, product)
        if error < TOLERANCE:
            if match[0] is None and not swap_fails(weights, product):
                return "swapped heads go unnoticed", None, None
            used[index], match = True, (product, tokens)
            verdict.worst = max(verdict.worst, error)
        nearest = min(nearest, error)
    if match[0] is not None:
        return "right", *match
    return "mismatch" if nearest < float("inf") else "not run", None, None
