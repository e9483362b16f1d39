"""Scores of many forms at once, from torch tensors in float64, by the formulas that the scores of single forms use.

A GPU computes float64 products so fast that no float32 estimate is worth its doubts. A form for which even float64 Gram
matrices are not precise enough is to be scored again on the CPU, from QR factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.weights.scoring.device.fetching import Fetched
from attngeo.weights.scoring.device.products import Side, cross_products, quadratic_forms
from attngeo.weights.scoring.device.rotary import head_average, layer_average, within_pairs
from attngeo.weights.scoring.directionality import directionality
from attngeo.weights.scoring.dominance import dominance
from attngeo.weights.scoring.effective_rank import effective_ranks, effective_ranks_of_dense
from attngeo.weights.scoring.factored import Figures, FormScores
from attngeo.weights.scoring.norms import dense_norms
from attngeo.weights.scoring.rotary.average import RotaryAverage, rotary_average
from attngeo.weights.scoring.rotary.heads import NO_ROTATION, PairProducts, RotaryScores, pair_products
from attngeo.weights.scoring.rounding_error import batched_error
from attngeo.weights.scoring.self_attending import self_attending
from attngeo.weights.scoring.symmetry import squared_norm, symmetry_ratio, trace_of_square

if TYPE_CHECKING:
    from torch import Tensor

NO_NORMS = np.empty(0)  # norms of rows and columns stay on the device


def batched_scores(
    query: Side, key: Side, figures: Figures, groups: int | None = None
) -> Callable[[], list[FormScores]]:
    """Let the device compute the scores of all forms; return a function that waits for them and returns them.

    Those with a large `error` are to be computed again.

    query, key: [B, m, r, d_q], [B, 1, r, d_k], of B·m forms
    groups:     G, where the forms are those of layers, with factors [L, 1, G r, d]; None: those of heads
    """
    import torch

    with torch.inference_mode():
        values, products = _figures(query, key, figures)
        if figures.rotary is not None:
            average = _rotary_average(query, key, products, figures, groups)
            rows, columns = (side.expand(*values[0].shape, -1) for side in (average.rows, average.columns))
            direction = directionality(rows, columns, figures.gamma)
            values += [average.symmetry, torch.where((rows > 0).any(-1), direction, torch.nan)]
        table = Fetched(torch.stack([value.flatten() for value in values], -1))  # [B·m, figures]
        pairs = None
        if figures.pairs and figures.rotary is not None and products is not None:
            of_pairs = [within_pairs(z, figures.rotary, 1).flatten(-2) for z in products]  # [B, m, n, 4]
            pairs = [Fetched(z.expand(*values[0].shape, -1, -1).flatten(0, 1)) for z in of_pairs]
    return lambda: _form_scores(table, pairs, figures)


def _figures(query: Side, key: Side, figures: Figures) -> tuple[list[Tensor], tuple[Tensor, Tensor, Tensor] | None]:
    """Return the figures of all forms, each `[B, m]`, and the products A, B and X if they were computed."""
    (r, d_query), d_key = query.w.shape[-2:], key.w.shape[-1]
    square = d_query == d_key
    unknown = query.w.new_full(query.w.shape[:2], np.nan)
    score, trace, ranks, products = unknown, None, None, None
    if r >= max(d_query, d_key) and not figures.pairs:
        form = query.w.mT @ key.w  # [B, m, d_q, d_k]
        rows, columns = dense_norms(form)
        norm = (form * form).sum((-1, -2))
        if square:
            score, trace = symmetry_ratio(trace_of_square(form), norm), form.diagonal(0, -2, -1).sum(-1)
            ranks = effective_ranks_of_dense(form) if figures.ranks else None
        error = batched_error(rows, columns, norm, None, None, None, unknown)
    else:
        rows, columns = quadratic_forms(key.gram, query.w).sqrt(), quadratic_forms(query.gram, key.w).sqrt()
        norm = squared_norm(query.gram, key.gram)
        cross = cross_products(query.w, key.w) if square else None  # [B, m, r, r], Cᵀ
        if cross is not None:
            score, trace = symmetry_ratio(trace_of_square(cross), norm), cross.diagonal(0, -2, -1).sum(-1)
            ranks = effective_ranks(cross.mT, query.gram, key.gram) if figures.ranks else None
            products = query.gram, key.gram, cross
        error = batched_error(rows, columns, norm, query.gram, key.gram, cross, score)
    values = [
        score,
        directionality(rows, columns, figures.gamma),
        norm.clamp_min(0).sqrt(),
        error,
        unknown if trace is None else self_attending(trace, norm, min(r, d_query)),
        unknown if ranks is None else ranks.symmetric,
        unknown if ranks is None else ranks.skew,
        dominance(rows, columns) if figures.dominance else unknown,
    ]
    return values, products


def _rotary_average(
    query: Side, key: Side, products: tuple[Tensor, Tensor, Tensor] | None, figures: Figures, groups: int | None
) -> RotaryAverage[Tensor]:
    """Return the averages over all offsets, `[B, m]`."""
    assert figures.rotary is not None
    if products is None:
        w_query, w_key = (side.w.unflatten(-2, (groups or 1, -1)).mT for side in (query, key))  # [B, m, G, d, r]
        return rotary_average(w_query, w_key, figures.rotary)
    if groups is None:
        return head_average(query, key, products[2], figures.rotary)
    return layer_average(query, key, products[2], figures.rotary, groups)


def _form_scores(table: Fetched, pairs: Sequence[Fetched] | None, figures: Figures) -> list[FormScores]:
    """Return figures `[n, figures]` form by form."""
    rows: list[list[float]] = table.array().tolist()
    of_pairs: Sequence[PairProducts | None] = [None] * len(rows)
    if pairs is not None and figures.rotary is not None:
        factor = figures.rotary.factor
        each: Any = zip(*(z.array() for z in pairs), strict=True)
        of_pairs = [pair_products(a, b, x, factor) for a, b, x in each]
    return [
        FormScores(
            symmetry, direction, norm, NO_NORMS, NO_NORMS, error, share, rank_symmetric, rank_skew, dominates,
            RotaryScores(rope[0], rope[1], own_pairs) if rope else NO_ROTATION,
        )
        for (symmetry, direction, norm, error, share, rank_symmetric, rank_skew, dominates, *rope), own_pairs in zip(
            rows, of_pairs, strict=True
        )
    ]  # fmt: skip
