"""Compare a model type with a live model: its own products against the forms that attngeo cuts from its checkpoint."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attngeo.errors import LayoutError
from attngeo.weights.layout.facts import width
from attngeo.weights.layout.find import find_layers, unknown_layers
from attngeo.weights.layout.heads import count_heads
from attngeo.weights.layout.layer import Layer
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.sources.checkpoint import ReadRequest, TensorInfo
from attngeo.weights.sources.open import open_checkpoint
from tools.proof.agreement import TOLERANCE, Match, compare, exchange_is_noticed
from tools.proof.causality import is_causal
from tools.proof.comparable_model import GainOnly, randomise, reduce_norms, restore_norms
from tools.proof.norm_rules import measure_norm, norm_before, norm_rule, qk_norms_centre
from tools.proof.product_recorder import Product
from tools.proof.recorded_runs import record_attention, record_model
from tools.proof.rotary.rotating_twins import RotatingTwins, judge_rotation
from tools.proof.rotary.rotation import LocatedLayer
from tools.proof.tiny_model import build_model
from tools.proof.verdict import Verdict, assume

# Config switches that give queries and keys a norm.
_QK_SWITCHES = ("use_qk_norm", "qk_layernorm", "qk_ln", "qk_layer_norms")
# Config switches that put another norm before the attention, in a tensor of another name (Falcon).
_NORM_SWITCHES = ("new_decoder_architecture",)


def prove_model(model: PreTrainedModel, model_type: str, *, rotation: bool = True) -> Verdict:
    """Save the model, cut its forms from the files, run it, and return how the two compare.

    rotation: also find out how its heads rotate
    """
    model = model.eval().float()
    restore_norms(model)  # which an earlier comparison reduced
    randomise(model)
    twins = RotatingTwins(model) if rotation else None
    reduced = reduce_norms(model)
    offset, centred = _gain_has_offset(model), centred_by_switch(model)
    with tempfile.TemporaryDirectory() as folder:
        restore_norms(model)
        model.save_pretrained(folder)
        assume(model_type, offset=offset, centred=centred)
        uncounted = _uncounted_templates(folder)
        extracted = extract_layers(folder)
    reduce_norms(model)
    verdict = Verdict(model_type, "right", qk_norm=reduced > 0, offset=offset, centred=centred, sites=uncounted)
    judge_layers(model, extracted, verdict, twins)
    verdict.norms += [rule for rule in norms_by_switch(model, model_type) if rule not in verdict.norms]
    return verdict


@dataclass(frozen=True)
class ExtractedLayers:
    """What attngeo cuts from a checkpoint."""

    weights: list[Layer]
    stored: dict[str, Tensor]  # the query weights and all vectors, by name
    unknown: list[str]  # templates of query projections in an unknown layout


def extract_layers(ref: Any) -> ExtractedLayers:
    """Return the layers that attngeo cuts from `ref`, a folder or a file."""
    with open_layers(ref, unproven=False) as layers:
        weights = list(layers)
        names = _queries_and_vectors(layers.checkpoint.tensors, weights)
        stored = {name: torch.from_numpy(layers.checkpoint.read(ReadRequest(name))) for name in names}
        shapes = {name: info.shape for name, info in layers.checkpoint.tensors.items()}
        found = {layer.path for layer in find_layers(shapes, layers.checkpoint.config)}
    return ExtractedLayers(weights, stored, unknown_layers(shapes, found))


def judge_layers(
    model: nn.Module, extracted: ExtractedLayers, verdict: Verdict, twins: RotatingTwins | None = None
) -> Verdict:
    """Fill `verdict` with how the live model agrees with every extracted layer, and return it.

    twins: the same model with positions that are not zero, to find out how its heads rotate
    """
    verdict.layers = len(extracted.weights)
    verdict.unknown = extracted.unknown
    verdict.width = all(map(_has_declared_width, extracted.weights))
    uncounted = dict(verdict.sites)
    verdict.sites.clear()
    products, errors = record_model(model, model.config)
    used = [False] * len(products)
    located: list[LocatedLayer] = []
    for weights in extracted.weights:
        query = extracted.stored[weights.storage.query]
        verdict.stacks[weights.stack] = verdict.stacks.get(weights.stack, 0) + 1
        result, places = _judge_layer(weights, products, used, verdict)
        seen = products
        located.append(LocatedLayer(weights, places, query))
        if result != "right" and (more := record_attention(model, weights, query)[0]):
            seen = more
            result, places = _judge_layer(weights, more, [False] * len(more), verdict)
        # In products with position embeddings (DeBERTa, SEW-D) queries and keys read two sequences: one is no token.
        of_tokens = [(index, match) for index, match in places if match.query == match.key]
        if of_tokens and not weights.cross:
            index, match = of_tokens[-1]
            _add_norm_rule(model, weights.path, seen[index], match.tokens(seen[index]), extracted.stored, verdict)
        if verdict.sites.get(weights.template, "right") == "right":
            verdict.sites[weights.template] = result
    verdict.unplaced = sum(not u for u, product in zip(used, products, strict=True) if product.interface)
    verdict.causal = is_causal(model, model.config)
    if twins is not None:
        right = [layer for layer in located if verdict.sites[layer.weights.template] == "right"]
        judge_rotation(right, twins, len(products), verdict)
    verdict.sites.update(uncounted)
    cross = {layer.template for layer in extracted.weights if layer.cross}
    wrong = {template: result for template, result in verdict.sites.items() if result != "right"}
    verdict.skip = list(wrong)
    reasons = "; ".join(f"{template}: {result}" for template, result in wrong.items())
    verdict.reason = reasons + (f" [{errors[0]}]" if wrong and errors else "")
    if not any(result == "right" for template, result in verdict.sites.items() if template not in cross):
        verdict.status = "refused" if "mismatch" in wrong.values() else "unproven"
    return verdict


def _judge_layer(
    weights: Layer, products: list[Product], used: list[bool], verdict: Verdict
) -> tuple[str, tuple[tuple[int, Match], ...]]:
    """Return the result for one layer, and the products that it reproduces, by index; mark these as used."""
    nearest = float("inf")
    places: list[tuple[int, Match]] = []
    for index, product in enumerate(products):
        match = compare(weights, product)
        if match is None:
            continue
        if match.error < TOLERANCE:
            if not places and not exchange_is_noticed(weights, product):
                return "swapped heads go unnoticed", ()
            used[index] = True
            places.append((index, match))
            verdict.worst = max(verdict.worst, match.error)
        nearest = min(nearest, match.error)
    if places:
        return "right", tuple(places)
    return "mismatch" if nearest < float("inf") else "not run", ()


def _uncounted_templates(folder: str) -> dict[str, str]:
    """Return the templates whose heads cannot be counted, and why; they are left out, the others can still be right."""
    with open_checkpoint(folder) as checkpoint:
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        uncounted: dict[str, str] = {}
        for layer in find_layers(shapes, checkpoint.config):
            try:
                if count_heads(layer, shapes).heads is None:
                    uncounted[layer.template] = "no head count"
            except LayoutError as error:
                uncounted[layer.template] = str(error)
        assert checkpoint.config is not None
        assume(str(checkpoint.config["model_type"]), skip=list(uncounted), status="right")
    return uncounted


def _has_declared_width(layer: Layer) -> bool:
    """Return whether the token vectors of this layer are as wide as its part of the config declares."""
    declared = width(layer.scope) if layer.scope is not None else None
    return layer.cross or declared is None or declared[1] == layer.query.shape[1]


def _queries_and_vectors(tensors: Mapping[str, TensorInfo], layers: Collection[Layer]) -> list[str]:
    """Return the names of the query weights and of all float vectors."""
    queries = {layer.storage.query for layer in layers}
    return [
        name
        for name, info in tensors.items()
        if name in queries or (len(info.shape) == 1 and info.dtype.startswith(("F", "BF")))
    ]


def _gain_has_offset(model: nn.Module) -> bool:
    """Return whether the norms on queries and keys multiply by 1 + weight."""
    for module in model.modules():
        weight = getattr(module.norm, "weight", None) if isinstance(module, GainOnly) else None
        if weight is not None and weight.dim() == 1:
            _, gain = measure_norm(module.norm, weight.shape[0])
            return torch.allclose(gain, 1 + weight, atol=1e-4)
    return False


def centred_by_switch(model: PreTrainedModel) -> bool:
    """Return whether norms on queries and keys subtract the mean, in the model or, by a config switch, in its twin."""
    config = copy.deepcopy(model.config)
    off = [key for key in _QK_SWITCHES if getattr(config, key, None) is False]
    for key in off:
        setattr(config, key, True)
    return qk_norms_centre(model) or (bool(off) and qk_norms_centre(build_model(type(model), config)))


def norms_by_switch(model: PreTrainedModel, model_type: str) -> list[dict[str, Any]]:
    """Return the rules for the norms before the attention of a twin that has other norms by a config switch."""
    config = copy.deepcopy(model.config)
    off = [key for key in _NORM_SWITCHES if getattr(config, key, None) is False]
    for key in off:
        setattr(config, key, True)
    return prove_model(build_model(type(model), config), model_type, rotation=False).norms if off else []


def _add_norm_rule(
    model: nn.Module, site: str, product: Product, tokens: Tensor, stored: Mapping[str, Tensor], verdict: Verdict
) -> None:
    norm = norm_before(model, product, tokens)
    rule = None if norm is None else norm_rule(site, stored, norm, tokens.shape[1])
    if rule is not None and rule not in verdict.norms:
        verdict.norms.append(rule)
