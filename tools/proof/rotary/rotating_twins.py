"""Twins of a live model whose positions are not zero: the same weights, with the sines and cosines of their config."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from attngeo.weights.layout.config_scope import Scope, scope_of
from tools.proof.comparable_model import reduce_norms
from tools.proof.product_recorder import NAME
from tools.proof.recorded_runs import record_model
from tools.proof.rotary.rotation import (
    SWITCHED,
    VARIANTS,
    LocatedLayer,
    RotaryVerdict,
    Runs,
    add_settings_read,
    examine,
    search,
    vary,
)
from tools.proof.verdict import Verdict


class RotatingTwins:
    """Builds twins of a model, under its own config or with other rotary settings."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model_class: Any = type(model)
        self.config = copy.deepcopy(model.config)
        self.parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def build(self, config: Any) -> PreTrainedModel:
        """Return a model with this config and the weights of the first one."""
        implementation = NAME if self.model_class._can_set_attn_implementation() else "eager"
        torch.manual_seed(0)
        model = self.model_class._from_config(config, attn_implementation=implementation, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:  # others are tables of positions, which the constructor fills
                    parameter.copy_(self.parameters[name])
        reduce_norms(model)
        return model.eval()  # type: ignore[no-any-return]

    def runs(self, config: Any) -> Runs:
        """Return the products of a twin at positions 0, 1, 2, … and at positions farther apart."""
        model = self.build(config)
        return [record_model(model, model.config, rotating=True, spread=spread)[0] for spread in (False, True)]

    def variants(self, count: int) -> Iterator[tuple[tuple[str, ...], Runs, Any]]:
        """Yield (what it shows, runs, function from a layer to its part of the config) for each variant that runs.

        count: number of products that a run has to have
        """
        for shown, changes in VARIANTS:
            config = copy.deepcopy(self.config)
            try:
                if not vary(config, changes):
                    continue
                runs = self.runs(config)
            except Exception:  # the model does not accept the settings
                continue
            if all(len(run) == count for run in runs):
                stored = json.loads(config.to_json_string())
                yield shown, runs, _scopes(stored)


def _scopes(stored: dict[str, Any]) -> Any:
    def scope(layer: LocatedLayer) -> Scope:
        return scope_of(stored, layer.site.path)

    return scope


def judge_rotation(layers: list[LocatedLayer], twins: RotatingTwins, count: int, verdict: Verdict) -> None:
    """Fill `verdict` with how the heads of these layers rotate.

    count: number of products that the model has at position zero; a twin must have as many, in the same order
    """
    found = _judge(layers, twins, twins.config, count)
    if any(rule["pairs"] != "none" for rule in found.rules.values()):
        add_settings_read(found, layers, twins.variants(count))
    verdict.rotary, verdict.rotary_unproved, verdict.rotary_worst = found.stored(), found.reasons, found.worst
    for changes in SWITCHED.get(verdict.model_type, ()):
        config = copy.deepcopy(twins.config)
        for key, value in changes.items():
            setattr(config, key, value)
        scope = _scopes(json.loads(config.to_json_string()))
        switched = [replace(layer, site=replace(layer.site, scope=scope(layer))) for layer in layers]
        verdict.rotary += [{**rule, "when": changes} for rule in _judge(switched, twins, config, count).stored()]


def _judge(layers: list[LocatedLayer], twins: RotatingTwins, config: Any, count: int) -> RotaryVerdict:
    """Return how the heads rotate under one config."""
    found = RotaryVerdict()
    try:
        runs = twins.runs(copy.deepcopy(config))
        problem = "" if all(len(run) == count for run in runs) else "the model runs differently at other positions"
    except Exception as error:
        runs, problem = [], f"{type(error).__name__}: {str(error)[:120]}"
    for layer in layers:
        if not problem and not layer.places:
            layer = search(layer, runs[0])
        if problem or not layer.places:
            found.reasons[layer.site.template] = problem or "its attention was only run by itself"
            continue
        outcome, error = examine(layer, runs)
        found.add(layer, outcome)
        if not isinstance(outcome, str):
            found.worst = max(found.worst, error)
    return found
