"""Scores of many forms at once, from torch tensors in float64, by the formulas that the scores of single forms use.

A GPU computes float64 products so fast that no float32 estimate is worth its doubts. A form for which even float64 Gram
matrices are not precise enough is scored again on the CPU, from QR factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.weights.scoring.directionality import directionality
from attngeo.weights.scoring.dominance import dominance
from attngeo.weights.scoring.effective_rank import effective_ranks, effective_ranks_of_dense
from attngeo.weights.scoring.factored import Figures, FormScores
from attngeo.weights.scoring.norms import column_norms, dense_norms, row_norms
from attngeo.weights.scoring.rotary.average import rotary_average
from attngeo.weights.scoring.rotary.heads import NO_ROTATION, RotaryScores, pair_products, select_pairs
from attngeo.weights.scoring.rounding_error import batched_error
from attngeo.weights.scoring.self_attending import self_attending
from attngeo.weights.scoring.symmetry import squared_norm, symmetry_ratio, trace_of_square

if TYPE_CHECKING:
    from torch import Tensor

NO_NORMS = np.empty(0)  # norms of rows and columns stay on the device


def batched_head_scores(
    query: Tensor, key: Tensor, partner: Sequence[int] | None, figures: Figures
) -> list[FormScores]:
    """Return the scores of every head; those with a large `error` are to be computed again.

    query:   [H, r, d_q]
    key:     [G, r, d_k]
    partner: if given, the queries of group g are paired with the keys of group partner[g] instead of their own
    """
    import torch

    with torch.inference_mode():
        query = query.unflatten(0, (len(key), -1))  # [G, m, r, d_q]
        key = (key if partner is None else key[list(partner)]).unsqueeze(1)  # [G, 1, r, d_k]
        rotary = None
        if figures.rotary is not None:
            of_query, of_key = (w.unsqueeze(-3).swapaxes(-1, -2) for w in (query, key))  # [G, m, 1, d, r]
            rotary = rotary_average(of_query, of_key, figures.rotary)
        return _fetched(*_figures(query, key, figures), rotary, figures)


def batched_layer_scores(query: Tensor, key: Tensor, figures: Figures, groups: int) -> list[FormScores]:
    """Return the scores of L layer forms from their factors `[L, G r, d_q]` and `[L, G r, d_k]`."""
    import torch

    with torch.inference_mode():
        rotary = None
        if figures.rotary is not None:
            of_query, of_key = (w.unflatten(1, (groups, -1)).swapaxes(-1, -2) for w in (query, key))  # [L, G, d, r]
            rotary = rotary_average(of_query, of_key, figures.rotary)
        return _fetched(*_figures(query, key, figures), rotary, figures)


def _figures(query: Tensor, key: Tensor, figures: Figures) -> tuple[list[Tensor], tuple[Tensor, ...] | None]:
    """Return the figures of forms with factors `[..., r, d]`, each `[...]`, and the products A, B and X."""
    import torch

    r, d_query, d_key = query.shape[-2], query.shape[-1], key.shape[-1]
    square = d_query == d_key
    products = None
    unknown = query.new_full(torch.broadcast_shapes(query.shape[:-2], key.shape[:-2]), torch.nan)
    trace = ranks = None
    if r >= max(d_query, d_key) and not figures.pairs:
        form = query.mT @ key  # [..., d_q, d_k]
        rows, columns = dense_norms(form)
        norm = (form * form).sum((-1, -2))
        error = batched_error(rows, columns, norm, None, None, None, unknown)
        if square:
            score, trace = symmetry_ratio(trace_of_square(form), norm), form.diagonal(0, -2, -1).sum(-1)
            ranks = effective_ranks_of_dense(form) if figures.ranks else None
    else:
        gram_query, gram_key = query @ query.mT, key @ key.mT  # [..., r, r]
        rows, columns = row_norms(query.mT, gram_key), column_norms(key.mT, gram_query)
        norm = squared_norm(gram_query, gram_key)
        cross = query @ key.mT if square else None  # [..., r, r], Xᵀ of C
        if cross is not None:
            score, trace = symmetry_ratio(trace_of_square(cross), norm), cross.diagonal(0, -2, -1).sum(-1)
            ranks = effective_ranks(cross.mT, gram_query, gram_key) if figures.ranks else None
            products = (gram_query, gram_key, cross)
        error = batched_error(rows, columns, norm, gram_query, gram_key, cross, score if square else unknown)
    rows, columns = rows.broadcast_to(*unknown.shape, -1), columns.broadcast_to(*unknown.shape, -1)
    values = [
        score if square else unknown,
        directionality(rows, columns, figures.gamma),
        norm.clamp_min(0).sqrt(),
        error,
        unknown if trace is None else self_attending(trace, norm, min(r, d_query)),
        unknown if ranks is None else ranks.symmetric,
        unknown if ranks is None else ranks.skew,
        dominance(rows, columns),
    ]
    return values, products


def _fetched(
    values: list[Tensor], products: tuple[Tensor, ...] | None, rotary: Any, figures: Figures
) -> list[FormScores]:
    """Copy figures to the CPU at once and return them form by form."""
    import torch

    shape = values[0].shape
    if rotary is not None:
        rows, columns = (side.broadcast_to(*shape, -1) for side in (rotary.rows, rotary.columns))
        moving = (rows > 0).any(-1)
        values = [
            *values,
            rotary.symmetry,
            torch.where(moving, directionality(rows, columns, figures.gamma), torch.nan),
        ]
    table = torch.stack([value.broadcast_to(shape).reshape(-1) for value in values], -1).cpu().tolist()
    pairs: Sequence[Any] = [None] * len(table)
    if figures.pairs and figures.rotary is not None and products is not None:
        gram_query, gram_key, cross = (p.broadcast_to(*shape, *p.shape[-2:]).flatten(0, -3) for p in products)
        alone = [select_pairs(p, figures.rotary).cpu().numpy() for p in (gram_query, gram_key, cross)]  # [n, pairs, 4]
        pairs = [pair_products(a, b, x, figures.rotary.factor) for a, b, x in zip(*alone, strict=True)]
    found = []
    for row, own_pairs in zip(table, pairs, strict=True):
        symmetry, direction, norm, error, share, rank_symmetric, rank_skew, dominates, *rope = row
        found.append(
            FormScores(
                symmetry, direction, norm, NO_NORMS, NO_NORMS, error, share, rank_symmetric, rank_skew, dominates,
                RotaryScores(rope[0], rope[1], own_pairs) if rope else NO_ROTATION,
            )
        )  # fmt: skip
    return found
