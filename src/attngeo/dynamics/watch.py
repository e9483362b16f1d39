"""The form of a model in training, measured where its weights are: scores by layer and head, and the largest logit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngeo.dynamics.bert import Bert, block, embed, linear


def scores(query: Tensor, key: Tensor, gamma: float = 2.0) -> tuple[Tensor, Tensor]:
    """Symmetry and directionality [n] of n forms from their factors [n, d, r]; the formulas of `attngeo.score`."""
    query, key = query.double(), key.double()
    cross = key.mT @ query  # [n, r, r]
    gram_query, gram_key = query.mT @ query, key.mT @ key
    norm2 = (gram_query * gram_key).sum((-1, -2))
    symmetry = (cross * cross.mT).sum((-1, -2)) / norm2
    rows = (query @ gram_key * query).sum(-1).clamp_min(0).sqrt()  # [n, d]
    columns = (key @ gram_query * key).sum(-1).clamp_min(0).sqrt()
    above_rows, above_columns = _excess(rows, gamma), _excess(columns, gamma)
    total = above_rows + above_columns
    return symmetry, torch.where(total > 0, (above_rows - above_columns) / total, 0.0)


def _excess(norms: Tensor, gamma: float) -> Tensor:
    threshold = norms.mean(-1, keepdim=True) + gamma * norms.std(-1, keepdim=True)
    return (norms - threshold).clamp_min(0).sum(-1)


@torch.no_grad()  # type: ignore[untyped-decorator]
def form(model: Bert) -> dict[str, Any]:
    """Scores of every layer [layers] and head [layers][heads], and the std of W_q and W_k."""
    shape = model.config
    names = [f"bert.encoder.layer.{i}.attention.self" for i in range(shape.layers)]
    query, key = (
        torch.stack([model.get_parameter(f"{name}.{side}.weight").T for name in names]) for side in ("query", "key")
    )  # [layers, d, d]

    def heads(weight: Tensor) -> Tensor:
        return weight.unflatten(-1, (shape.heads, -1)).movedim(-2, 1).flatten(0, 1)  # [layers·heads, d, r]

    layer_scores = scores(query, key)
    head_scores = scores(heads(query), heads(key))
    return {
        "symmetry": _rounded(layer_scores[0]),
        "directionality": _rounded(layer_scores[1]),
        "head_symmetry": _rounded(head_scores[0].view(shape.layers, -1)),
        "head_directionality": _rounded(head_scores[1].view(shape.layers, -1)),
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
