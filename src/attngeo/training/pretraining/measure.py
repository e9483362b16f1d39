"""Measure a model in training on the device its weights are on: scores of its QK forms, and its attention logits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attngeo.training.pretraining.model import Model, logit_bias
from attngeo.weights.scoring.engine import score_forms

_RECORDED = ("symmetry", "directionality", "dominance", "self_attending", "norm")
_ROTARY = ("symmetry_rope", "directionality_rope", "dominance_rope")
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
    heads, rotary = model.shape.heads, model.rotary
    by_head = [w.unflatten(-1, (heads, -1)).movedim(-2, 1) for w in wide]  # [layers, heads, d, r]
    of_layers = score_forms(wide[0], wide[1], rotary, groups=heads)  # [layers]
    of_heads = score_forms(by_head[0], by_head[1], rotary)  # [layers, heads]
    names = (*_RECORDED, *(_ROTARY if rotary is not None else ()))
    figures = {name: getattr(of_layers, name) for name in names}
    figures |= {f"head_{name}": getattr(of_heads, name) for name in names}
    figures |= {f"std_{name}": w.square().mean((1, 2)).sqrt() for name, w in (("query", query), ("key", key))}
    return {name: _rounded(values) for name, values in figures.items()}


@torch.no_grad()  # type: ignore[untyped-decorator]
def largest_logits(model: Model, ids: Tensor) -> list[float]:
    """Return the largest |attention logit| of each layer [layers] on the rows ids [rows, length]."""
    seen = (logits.tril() if model.shape.causal else logits for logits in _attention_logits(model, ids))
    return [_rounded(logits.abs().amax()) for logits in seen]


@torch.no_grad()  # type: ignore[untyped-decorator]
def mean_self_logits(model: Model, ids: Tensor) -> list[float]:
    """Return the mean logit of a token with itself, of each layer [layers], on the rows ids [rows, length]."""
    return [_rounded(logits.diagonal(dim1=-2, dim2=-1).mean()) for logits in _attention_logits(model, ids)]


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


def _rounded(values: Any) -> Any:
    """Return the values as nested lists of numbers with _DIGITS significant digits; None for NaN."""
    if isinstance(values, Tensor):
        values = values.tolist()
    if isinstance(values, list):
        return [_rounded(value) for value in values]
    return None if math.isnan(values) else float(f"{values:.{_DIGITS}g}")
