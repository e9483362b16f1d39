"""Scores of many forms at once, from torch tensors in float64, by the formulas that the scores of single forms use.

A GPU computes float64 products so fast that no float32 estimate is worth its doubts: on an H200 both take as long, and
bfloat16 products with float32 sums, ten times as fast, are off by 1e-5. A form for which even float64 Gram matrices are
not precise enough is to be scored again on the CPU, from QR factors.

Each operation takes the program about 10 µs to ask for, however small it is. So the norms of all forms of a batch are
evaluated together on the device, and what is left, a few numbers per form, is evaluated on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attngeo.arrays import Floats
from attngeo.weights.scoring.device.fetching import Fetched
from attngeo.weights.scoring.device.products import Side
from attngeo.weights.scoring.device.sums import FormSums, Numbers, form_sums
from attngeo.weights.scoring.directionality import directionality
from attngeo.weights.scoring.dominance import dominance
from attngeo.weights.scoring.effective_rank import ranks_from_traces
from attngeo.weights.scoring.factored import Figures, FormScores
from attngeo.weights.scoring.rotary.heads import NO_ROTATION, PairProducts, RotaryScores, pair_products
from attngeo.weights.scoring.rounding_error import batched_error, batched_sensitivity
from attngeo.weights.scoring.self_attending import self_attending
from attngeo.weights.scoring.symmetry import symmetry_ratio

NO_NORMS = np.empty(0)  # norms of rows and columns stay on the device

# Waits until the device has computed the scores of forms, and returns them.
LaterScores = Callable[[], list[FormScores]]


class BatchedScores:
    """Scores of forms that are added first and computed together then."""

    def __init__(self) -> None:
        self._added: list[FormSums] = []
        self._computed: tuple[Fetched, Fetched] | None = None  # `FormSums.numbers`, and [4, n] figures of the norms

    def add(self, query: Side, key: Side, figures: Figures, groups: int | None = None) -> LaterScores:
        """Let the device compute the sums of forms; the function that returns their scores works after `compute`.

        Scores with a large `error` are to be computed again.

        query, key: [B, m, r, d_q], [B, 1, r, d_k], of B·m forms; the widths are the same for all forms that are added
        groups:     G, where the forms are those of layers, with factors [L, 1, G r, d]; None: those of heads
        """
        import torch

        with torch.inference_mode():
            sums = form_sums(query, key, figures, groups)
        self._added.append(sums)
        forms, norms = (slice(sum(counts[:-1]), sum(counts)) for counts in zip(*map(_counts, self._added), strict=True))
        pairs, rank = sums.pairs, min(query.w.shape[-2:])

        def scores() -> list[FormScores]:
            assert self._computed is not None  # `compute` was called
            numbers, figures_of_norms = (values.array() for values in self._computed)
            of_pairs = _pairs(pairs, figures, forms.stop - forms.start)
            return _form_scores(Numbers(*numbers[:, forms]), figures_of_norms[:, norms], of_pairs, figures, rank)

        return scores

    def compute(self) -> None:
        """Let the device compute the scores of all forms that were added, and send them to the CPU."""
        import torch

        with torch.inference_mode():
            rows, columns = (torch.cat([getattr(one, side) for one in self._added]) for side in ("rows", "columns"))
            figures = [directionality(rows, columns), dominance(rows, columns), *batched_sensitivity(rows, columns)]
            numbers = torch.cat([one.numbers for one in self._added], 1)
            self._computed = Fetched(numbers), Fetched(torch.stack(figures))
        self._added.clear()  # their memory is no longer needed


def _counts(sums: FormSums) -> tuple[int, int]:
    """Return the number of forms, and how often they have norms: twice if they rotate."""
    return sums.numbers.shape[1], len(sums.rows)


def _pairs(entries: Sequence[Fetched], figures: Figures, count: int) -> Sequence[PairProducts | None]:
    """Return the products of the rotary pairs of each form, None where they were not asked for."""
    if not entries or figures.rotary is None:
        return [None] * count
    products: Any = zip(*(z.array() for z in entries), strict=True)
    return [pair_products(a, b, x, figures.rotary.factor) for a, b, x in products]


def _form_scores(
    sums: Numbers, norms: Floats, pairs: Sequence[PairProducts | None], figures: Figures, rank: int
) -> list[FormScores]:
    """Return the scores of n forms.

    sums:  each [n]
    norms: [4, n], figures of their norms; [4, 2n] if they rotate
    """
    count = len(sums.norm)
    direction, dominates, sensitivity, spread = norms[:, :count]
    with np.errstate(all="ignore"):  # a form whose sums are not finite has an infinite error
        symmetry = symmetry_ratio(sums.trace_of_square, sums.norm)
        fourth = sums.straight, sums.crossed, sums.alternating, sums.odd
        ranks = ranks_from_traces(sums.trace_of_square, sums.norm, fourth)
        terms = sums.energy, sums.in_trace, sums.in_norm
        columns = [
            symmetry,
            direction,
            np.sqrt(sums.norm.clip(0.0)),
            batched_error(sums.norm, symmetry, sensitivity, spread, terms),
            self_attending(sums.trace, sums.norm, rank),
            ranks.symmetric,
            ranks.skew,
            dominates if figures.dominance else np.full(count, np.nan),
        ]
    rotary = [NO_ROTATION] * count
    if figures.rotary is not None:
        turned = np.where(sums.rotary_largest > 0, norms[0, count:], np.nan)
        rotary = [RotaryScores(*one) for one in zip(sums.rotary_symmetry.tolist(), turned.tolist(), pairs, strict=True)]
    rows = zip(*(column.tolist() for column in columns), rotary, strict=True)
    return [
        FormScores(s, d, norm, NO_NORMS, NO_NORMS, error, share, of_symmetric, of_skew, dominance, averaged)
        for s, d, norm, error, share, of_symmetric, of_skew, dominance, averaged in rows
    ]
