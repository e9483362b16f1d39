"""The statistic of relatedness and its null: the residual basis of one model permuted at random.

The statistic is the mean over layers, paired by index, of the mean |cosine| of the best assignment of heads. Models
trained from independent initial values have no common residual basis: architecture and optimiser treat the hidden
dimensions alike, so permuting those of one model changes nothing that the two could share, and the p-value is exact.
Models with RMSNorm also allow a change of sign in any dimension. LayerNorm does not, because it subtracts the mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attngeo.applications.compare.origin.matched_cosine import cosine_matrix, matched_cosine
from attngeo.arrays import AnyFloats, Floats
from attngeo.io.threads import each, spans

Layers = Sequence[tuple[AnyFloats, AnyFloats]]  # (forms of A, forms of B) per layer, unit columns [d², heads]


def statistic(layers: Layers) -> float:
    """Return the mean over layers of the matched |cosine|."""
    return float(np.mean([matched_cosine(cosine_matrix(a, b)) for a, b in layers]))


def wrongly_paired(layers: Layers) -> float | None:
    """Return the statistic with each layer of A paired with the next layer of B, as a control; None for one layer."""
    if len(layers) < 2:
        return None
    return statistic([(a, layers[(at + 1) % len(layers)][1]) for at, (a, _) in enumerate(layers)])


def permuted_statistics(layers: Layers, draws: int, seed: int, flips: bool) -> Floats:
    """Return the statistic for random permutations of the hidden dimensions of B, `[draws]`.

    flips: also change the sign of random dimensions

    >>> forms = np.random.default_rng(0).normal(size=(64, 3))  # 3 heads, 8 hidden dimensions
    >>> forms /= np.linalg.norm(forms, axis=0)
    >>> bool(statistic([(forms, forms)]) > permuted_statistics([(forms, forms)], 99, 0, flips=False).max())
    True
    """
    width = round(len(layers[0][0]) ** 0.5)
    generators = np.random.default_rng([seed, 2]).spawn(draws)
    found = np.empty(draws)

    def work(some: slice) -> None:
        for draw in range(some.start, some.stop):
            rng = generators[draw]
            order = rng.permutation(width)
            index = (order[:, None] * width + order).ravel()  # [d²], entry (i, j) of P M Pᵀ
            total = 0.0
            signs = np.sign(rng.random(width) - 0.5).astype(layers[0][0].dtype) if flips else None
            flip = None if signs is None else np.outer(signs, signs).reshape(-1, 1)  # [d², 1]
            for a, b in layers:
                permuted = b.take(index, axis=0)  # [d², heads]
                total += matched_cosine(cosine_matrix(a if flip is None else a * flip, permuted))
            found[draw] = total / len(layers)

    cost = draws * sum(a.size * b.shape[1] for a, b in layers)
    each(work, spans(draws, cost), cost)
    return found
