"""Measure a model in training on the device its weights are on: scores of its QK forms, and its attention logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngeo.dynamics.monitoring.live_scores import figures_from_factors
from attngeo.dynamics.pretraining.bert import Bert
from attngeo.dynamics.pretraining.transformer import embed, layer, linear

_DIGITS = 5  # significant digits of a record, more than a score has


@torch.no_grad()  # type: ignore[untyped-decorator]
def form_scores(model: Bert) -> dict[str, Any]:
    """Return the scores of every layer [layers] and every head [layers][heads], and the std of W_q and W_k [layers]."""
    shape = model.config
    names = [f"bert.encoder.layer.{i}.attention.self" for i in range(shape.layers)]
    query, key = (
        torch.stack([model.get_parameter(f"{name}.{side}.weight").T for name in names]) for side in ("query", "key")
    )  # [layers, d, d]

    def heads(weight: Tensor) -> Tensor:
        return weight.unflatten(-1, (shape.heads, -1)).movedim(-2, 1)  # [layers, heads, d, r]

    wide = query.double(), key.double()
    of_layers = figures_from_factors(*wide)  # [layers, figures]
    of_heads = figures_from_factors(*map(heads, wide))  # [layers, heads, figures]
    return {
        "symmetry": _rounded(of_layers[..., 0]),
        "directionality": _rounded(of_layers[..., 1]),
        "head_symmetry": _rounded(of_heads[..., 0]),
        "head_directionality": _rounded(of_heads[..., 1]),
        "std_query": _rounded(query.square().mean((1, 2)).sqrt()),
        "std_key": _rounded(key.square().mean((1, 2)).sqrt()),
    }


@torch.no_grad()  # type: ignore[untyped-decorator]
def largest_logits(model: Bert, ids: Tensor) -> list[float]:
    """Return the largest |attention logit| of each layer [layers] on the rows ids [rows, length]."""
    shape = model.config
    # The functions are not compiled here: they run on a few rows at each evaluation.
    x = embed(ids, model.embedding_weights, model.dtype)  # [rows, length, d]
    largest = []
    for weights in model.layer_weights:
        wq, bq, wk, bk = weights[:4]
        q, k = (
            linear(x, weight, bias).unflatten(-1, (shape.heads, -1)).transpose(1, 2)
            for weight, bias in ((wq, bq), (wk, bk))
        )  # [rows, heads, length, r]
        logits = (q @ k.mT).float() / q.shape[-1] ** 0.5  # [rows, heads, length, length]
        if shape.causal:
            logits = logits.tril()
        largest.append(logits.abs().amax())
        x = layer(x, weights, shape.heads, shape.causal)
    rounded: list[float] = _rounded(torch.stack(largest))
    return rounded


def _rounded(values: Tensor) -> Any:
    """Return the values as nested lists of numbers with _DIGITS significant digits."""

    def rounded(value: Any) -> Any:
        return [rounded(item) for item in value] if isinstance(value, list) else float(f"{value:.{_DIGITS}g}")

    return rounded(values.tolist())
