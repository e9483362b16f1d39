"""Twins of a live model whose positions are not zero: the same weights, with the sines and cosines of their config."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from attngeo.weights.layout.facts import Scope, scope_of
from tools.proof.comparable_model import reduce_norms
from tools.proof.example_inputs import accepts_positions
from tools.proof.product_recorder import recorded_products
from tools.proof.recorded_runs import record_model
from tools.proof.rotary.rotation import (
    SWITCHED,
    VARIANTS,
    LocatedLayer,
    RotaryVerdict,
    Runs,
    add_settings_read,
    examine,
    is_free_of_positions,
    search,
    vary,
)
from tools.proof.tiny_model import build_model
from tools.proof.verdict import Verdict


class RotatingTwins:
    """Builds twins of a model, under its own config or with other rotary settings."""

    def __init__(self, model: PreTrainedModel, config: Any = None) -> None:
        self.model_class: Any = type(model)
        self.config = copy.deepcopy(model.config if config is None else config)
        self.parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def build(self, config: Any) -> PreTrainedModel:
        """Return a model with this config and the weights of the first one."""
        with recorded_products(rotating=True) as recorder:
            model = build_model(self.model_class, config)
        self.angles = tuple(recorder.angles[-8:])  # tables of angles that the constructor made
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # Others are tables of positions, which the constructor fills, or tied to another parameter.
                if parameter.requires_grad and name in self.parameters:
                    parameter.copy_(self.parameters[name])
        reduce_norms(model)
        return model.eval()

    def variants(self, config: Any, count: int) -> Iterator[tuple[Runs, Any]]:
        """Yield (runs, function from a layer to its part of the config) for each variant of `config` that runs.

        count: number of products that a run has to have
        """
        for changes in VARIANTS:
            varied = copy.deepcopy(config)
            try:
                if not vary(varied, changes):
                    continue
                runs = rotating_runs(self.build(varied), self.angles)
            except Exception:  # the model does not accept the settings
                continue
            if all(len(run) == count for run in runs):
                stored = json.loads(varied.to_json_string())
                yield runs, _scopes(stored)


def rotating_runs(model: PreTrainedModel, angles: tuple[Tensor, ...]) -> Runs:
    """Return the products of a twin at positions 0, 1, 2, … and, where it accepts positions, at others farther apart.

    angles: tables that the constructor made; they count as made before every product
    """
    parts = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    both = (False, True) if any(map(accepts_positions, parts)) else (False,)
    runs = [record_model(model, model.config, rotating=True, spread=spread)[0] for spread in both]
    return [[replace(product, angles=(*angles, *product.angles)) for product in run] for run in runs]


def _scopes(stored: dict[str, Any]) -> Any:
    def scope(layer: LocatedLayer) -> Scope:
        return scope_of(stored, layer.weights.path)

    return scope


def judge_rotation(layers: list[LocatedLayer], twins: RotatingTwins, count: int, verdict: Verdict) -> None:
    """Fill `verdict` with how the heads of these layers rotate.

    count: number of products that the model has at position zero; a twin must have as many, in the same order
    """
    found = _judge(layers, twins, twins.config, count)
    verdict.rotary, verdict.rotary_unproved, verdict.rotary_worst = found.stored(), found.reasons, found.worst
    for changes in SWITCHED.get(verdict.model_type, ()):
        config = copy.deepcopy(twins.config)
        for key, value in changes.items():
            setattr(config, key, value)
        scope = _scopes(json.loads(config.to_json_string()))
        switched = [replace(layer, weights=replace(layer.weights, scope=scope(layer))) for layer in layers]
        verdict.rotary += [{**rule, "when": changes} for rule in _judge(switched, twins, config, count).stored()]


def _judge(layers: list[LocatedLayer], twins: RotatingTwins, config: Any, count: int) -> RotaryVerdict:
    """Return how the heads rotate under one config, and which of its settings they follow."""
    found = RotaryVerdict()
    try:
        model = twins.build(copy.deepcopy(config))
        runs = rotating_runs(model, twins.angles)
        problem = "" if all(len(run) == count for run in runs) else "the model runs differently at other positions"
    except Exception as error:
        model, runs, problem = None, [], f"{type(error).__name__}: {str(error)[:120]}"
    for layer in layers:
        if model is not None and (problem or not layer.places) and is_free_of_positions(layer, model):
            found.add(layer, {"pairs": "none"})
            continue
        if not problem and not layer.places:
            layer = search(layer, runs[0])
        if problem or not layer.places:
            found.reasons[layer.weights.template] = problem or "its attention was only run by itself"
            continue
        outcome, deviation = examine(layer, runs)
        found.add(layer, outcome)
        if not isinstance(outcome, str):
            found.worst = max(found.worst, deviation)
    if any(rule["pairs"] != "none" for rule in found.rules.values()):
        add_settings_read(found, layers, twins.variants(config, count))
    return found
