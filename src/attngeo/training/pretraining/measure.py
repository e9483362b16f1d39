"""Measure a model in training on the device its weights are on: scores of its QK forms, and its attention logits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attngeo.training.monitoring.live_scores import figures_from_factors
from attngeo.training.monitoring.records import FIGURES
from attngeo.training.pretraining.architectures.blocks import logit_bias
from attngeo.training.pretraining.architectures.model import Model
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.directionality import directionality
from attngeo.weights.scoring.dominance import dominance
from attngeo.weights.scoring.rotary import rotary_average

_RECORDED = ("symmetry", "directionality", "dominance", "self_attending", "norm")
_DIGITS = 5  # significant digits of a record, more than a score has


@torch.no_grad()  # type: ignore[untyped-decorator]
def form_scores(model: Model) -> dict[str, Any]:
    """Return the scores of every layer [layers] and every head [layers][heads], and the std of W_q and W_k [layers].

    Keys of heads begin with `head_`. Where the model rotates queries and keys, `symmetry_rope`, `directionality_rope`
    and `dominance_rope` are averages over all offsets.
    """
    pairs = [model.query_key(number) for number in range(model.shape.layers)]
    query, key = (torch.stack([pair[side].mT for pair in pairs]) for side in (0, 1))  # [layers, d, d]
    wide = query.double(), key.double()
    by_head = tuple(w.unflatten(-1, (model.shape.heads, -1)).movedim(-2, 1) for w in wide)  # [layers, heads, d, r]
    of_layers, of_heads = _figures(*wide), _figures(*by_head)
    if (rotary := model.rotary) is not None:
        of_layers |= _rotary_figures(rotary, *by_head)
        of_heads |= _rotary_figures(rotary, *(w.unsqueeze(-3) for w in by_head))  # [layers, heads, 1, d, r]
    std = {f"std_{name}": w.square().mean((1, 2)).sqrt() for name, w in (("query", query), ("key", key))}
    figures = of_layers | {f"head_{name}": values for name, values in of_heads.items()} | std
    return {name: _rounded(values) for name, values in figures.items()}


def _figures(query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """Return the plain figures [...] of forms with factors [..., d, r]."""
    figures = dict(zip(FIGURES, figures_from_factors(query, key).unbind(-1), strict=True))
    return {name: figures[name] for name in _RECORDED}


def _rotary_figures(rotary: RotaryPairs, query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """Return the figures [...] of forms with factors [..., heads, d, r], averaged over all offsets."""
    average = rotary_average(query, key, rotary)
    return {
        "symmetry_rope": average.symmetry,
        "directionality_rope": directionality(average.rows, average.columns),
        "dominance_rope": dominance(average.rows, average.columns),
    }


@torch.no_grad()  # type: ignore[untyped-decorator]
def largest_logits(model: Model, ids: Tensor) -> list[float]:
    """Return the largest |attention logit| of each layer [layers] on the rows ids [rows, length]."""
    seen = (logits.tril() if model.shape.causal else logits for logits in _attention_logits(model, ids))
    rounded: list[float] = _rounded(torch.stack([logits.abs().amax() for logits in seen]))
    return rounded


@torch.no_grad()  # type: ignore[untyped-decorator]
def mean_self_logits(model: Model, ids: Tensor) -> list[float]:
    """Return the mean logit of a token with itself, of each layer [layers], on the rows ids [rows, length]."""
    rounded: list[float] = _rounded(
        torch.stack([logits.diagonal(dim1=-2, dim2=-1).mean() for logits in _attention_logits(model, ids)])
    )
    return rounded


def _attention_logits(model: Model, ids: Tensor) -> Iterator[Tensor]:
    """Yield the logits [rows, heads, length, length] of each layer, those of keys not yet seen included."""
    # The functions are not compiled here: they run on a few rows at each evaluation.
    x = model.embed(ids, model.embedding_weights, model.dtype)  # [rows, length, d]
    for number, weights in enumerate(model.layer_weights):
        q, k, _ = model.attention_inputs(x, weights, model.setting)  # [rows, heads, length, r]
        logits = (q @ k.mT).float() / math.sqrt(q.shape[-1])  # [rows, heads, length, length]
        bias = model.layer_bias(number)
        yield logits if bias is None else logits + logit_bias(ids.shape[1], False, bias)
        x = model.layer(x, weights, model.setting, bias)


def _rounded(values: Tensor) -> Any:
    """Return the values as nested lists of numbers with _DIGITS significant digits; None for NaN."""

    def rounded(value: Any) -> Any:
        if isinstance(value, list):
            return [rounded(item) for item in value]
        return None if math.isnan(value) else float(f"{value:.{_DIGITS}g}")

    return rounded(values.tolist())
