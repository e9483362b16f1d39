"""`FormSums`: the sums over the entries of many forms from which their scores are computed, as tensors in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attngeo.weights.scoring.device.fetching import Fetched
from attngeo.weights.scoring.device.products import Side, cross_products, quadratic_forms
from attngeo.weights.scoring.device.rotary import head_average, layer_average, within_pairs
from attngeo.weights.scoring.effective_rank import fourth_traces, fourth_traces_of_dense
from attngeo.weights.scoring.factored import Figures
from attngeo.weights.scoring.norms import dense_norms
from attngeo.weights.scoring.rotary.average import RotaryAverage, rotary_average
from attngeo.weights.scoring.rounding_error import gram_terms
from attngeo.weights.scoring.symmetry import squared_norm, trace_of_square

if TYPE_CHECKING:
    from torch import Tensor


class Numbers(NamedTuple):
    """Sums of n forms, each `[n]`; NaN where one does not exist or was not asked for."""

    norm: Any  # ‖M‖²
    trace: Any  # tr M
    trace_of_square: Any  # tr(M M)
    energy: Any  # this and the next two are `gram_terms`
    in_trace: Any
    in_norm: Any
    straight: Any  # this and the next three are `fourth_traces`
    crossed: Any
    alternating: Any
    odd: Any
    rotary_symmetry: Any  # s̄, averaged over all offsets
    rotary_largest: Any  # the largest of the row norms averaged over all offsets


@dataclass(frozen=True, eq=False)
class FormSums:
    """Sums of n forms."""

    rows: Tensor  # [n, d_q], row norms; where forms rotate [2n, d_q], followed by their averages over all offsets
    columns: Tensor  # [n, d_k] or [2n, d_k], likewise
    numbers: Tensor  # [len(Numbers), n]
    pairs: Sequence[Fetched]  # of A, B and X: [n, pairs, 4], their entries within rotary pairs; none: not asked for


def form_sums(query: Side, key: Side, figures: Figures, groups: int | None) -> FormSums:
    """Return the sums of B·m forms with factors `[B, m, r, d_q]` and `[B, 1, r, d_k]`.

    groups: G, where the forms are those of layers, with factors [L, 1, G r, d]; None: those of heads
    """
    import torch

    (r, d_query), d_key = query.w.shape[-2:], key.w.shape[-1]
    square, shape = d_query == d_key, query.w.shape[:2]
    unknown = query.w.new_full(shape, np.nan)
    trace = trace2 = mean_symmetry = largest = unknown
    fourth = (unknown,) * 4
    cross = None
    if r >= max(d_query, d_key) and not figures.pairs:
        form = query.w.mT @ key.w  # [B, m, d_q, d_k]
        rows, columns = dense_norms(form)
        norm = (form * form).sum((-1, -2))
        terms = (torch.zeros_like(norm),) * 3
        if square:
            trace, trace2 = form.diagonal(0, -2, -1).sum(-1), trace_of_square(form)
            fourth = fourth_traces_of_dense(form) if figures.ranks else fourth
    else:
        rows, columns = quadratic_forms(key.gram, query.w).sqrt(), quadratic_forms(query.gram, key.w).sqrt()
        norm = squared_norm(query.gram, key.gram)
        cross = cross_products(query.w, key.w) if square else None  # [B, m, r, r], Cᵀ
        terms = gram_terms(query.gram, key.gram, cross)
        if cross is not None:
            trace, trace2 = cross.diagonal(0, -2, -1).sum(-1), trace_of_square(cross)
            fourth = fourth_traces(cross.mT, query.gram, key.gram) if figures.ranks else fourth
    all_rows, all_columns = [rows], [columns]
    if figures.rotary is not None:
        average = _average(query, key, cross, figures, groups)
        all_rows.append(average.rows.expand(*shape, -1))
        all_columns.append(average.columns.expand(*shape, -1))
        mean_symmetry, largest = average.symmetry, all_rows[1].amax(-1)
    pairs = []
    if figures.pairs and figures.rotary is not None and cross is not None:
        for product in (query.gram, key.gram, cross):
            entries = within_pairs(product, figures.rotary, 1).flatten(-2)  # [B, m, pairs, 4]
            pairs.append(Fetched(entries.expand(*shape, -1, -1).flatten(0, 1)))
    numbers = Numbers(norm, trace, trace2, *terms, *fourth, mean_symmetry, largest)
    return FormSums(
        torch.cat([norms.flatten(0, 1) for norms in all_rows]),
        torch.cat([norms.flatten(0, 1) for norms in all_columns]),
        torch.stack([number.flatten() for number in numbers]),
        pairs,
    )


def _average(
    query: Side, key: Side, cross: Tensor | None, figures: Figures, groups: int | None
) -> RotaryAverage[Tensor]:
    """Return the averages over all offsets, `[B, m]`."""
    assert figures.rotary is not None
    if cross is None:
        w_query, w_key = (side.w.unflatten(-2, (groups or 1, -1)).mT for side in (query, key))  # [B, m, G, d, r]
        return rotary_average(w_query, w_key, figures.rotary)
    if groups is None:
        return head_average(query, key, cross, figures.rotary)
    return layer_average(query, key, cross, figures.rotary, groups)
