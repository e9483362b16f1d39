"""The form of a model in training, measured where its weights are: scores by layer and head, and the largest logit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngeo.dynamics.monitoring.live_scores import factor_sums, figures_of
from attngeo.dynamics.pretraining.bert import Bert, block, embed, linear


@torch.no_grad()  # type: ignore[untyped-decorator]
def form(model: Bert) -> dict[str, Any]:
    """Scores of every layer [layers] and head [layers][heads], and the std of W_q and W_k."""
    shape = model.config
    names = [f"bert.encoder.layer.{i}.attention.self" for i in range(shape.layers)]
    query, key = (
        torch.stack([model.get_parameter(f"{name}.{side}.weight").T for name in names]) for side in ("query", "key")
    )  # [layers, d, d]

    def heads(weight: Tensor) -> Tensor:
        return weight.unflatten(-1, (shape.heads, -1)).movedim(-2, 1)  # [layers, heads, d, r]

    wide = query.double(), key.double()
    layer, head = (figures_of(factor_sums(*sides)) for sides in (wide, map(heads, wide)))  # [layers, …, figures]
    return {
        "symmetry": _rounded(layer[..., 0]),
        "directionality": _rounded(layer[..., 1]),
        "head_symmetry": _rounded(head[..., 0]),
        "head_directionality": _rounded(head[..., 1]),
        "std_query": _rounded(query.square().mean((1, 2)).sqrt()),
        "std_key": _rounded(key.square().mean((1, 2)).sqrt()),
    }


@torch.no_grad()  # type: ignore[untyped-decorator]
def largest_logit(model: Bert, ids: Tensor) -> list[float]:
    """The largest |attention logit| of each layer on rows ids [rows, length]."""
    shape = model.config
    x = embed(ids, model._embed, model.dtype)  # not the compiled ones: a few rows now and then
    largest = []
    for weights in model._blocks:
        q, k = (linear(x, weights[i], weights[i + 1]).unflatten(-1, (shape.heads, -1)).transpose(1, 2) for i in (0, 2))
        logits = (q @ k.mT).float() / q.shape[-1] ** 0.5  # [rows, heads, length, length]
        if shape.causal:
            logits = logits.tril()
        largest.append(logits.abs().amax())
        x = block(x, weights, shape.heads, shape.causal)
    rounded: list[float] = _rounded(torch.stack(largest))
    return rounded


def _rounded(values: Tensor) -> Any:
    """Five digits are more than a score has."""

    def rounded(value: Any) -> Any:
        return [rounded(one) for one in value] if isinstance(value, list) else float(f"{value:.5g}")

    return rounded(values.tolist())
