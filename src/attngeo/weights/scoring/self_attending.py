"""Self-attending: how much a bilinear form M prefers a token vector itself.

    τ(M) = tr M / (√rank ‖M‖)  ∈ [−1, 1]        rank = min(d, r), r the number of columns of the factors

1 only for a positive multiple of an orthogonal projection of full rank; negative where tokens attend to tokens unlike
themselves. For independent Gaussian factors the mean is 0 and the standard deviation 1/√(rank·d). tr M = tr(W_kᵀ W_q).

The functions accept NumPy arrays or torch tensors with any number of leading batch axes.
"""

from __future__ import annotations

import math

import numpy as np

from attngeo.arrays import Array, namespace


def self_attending(trace: Array, squared_norm: Array, rank: int) -> Array:
    """Return τ(M) of each form of a batch, `[...]`; NaN where M = 0.

    trace:        [...], tr M, the sum of the diagonal of W_kᵀ W_q
    squared_norm: [...], ‖M‖²
    rank:         the largest rank of M: min(d, r) for a head, min(d, G·r) for a layer

    >>> projection = np.diag([2.0, 2.0, 0.0])
    >>> float(self_attending(np.trace(projection), (projection**2).sum(), 2).round(6))
    1.0
    """
    xp = namespace(trace)
    positive = squared_norm > 0
    ratio = trace / (math.sqrt(rank) * xp.sqrt(xp.where(positive, squared_norm, 1.0)))
    share: Array = xp.where(positive, ratio, np.nan).clip(-1.0, 1.0)  # [...], rounding may exceed ±1
    return share


def self_attending_std(rank: int, d: int) -> float:
    """Return the standard deviation of τ for independent Gaussian factors of width d: 1/√(rank·d). The mean is 0."""
    return 1 / math.sqrt(rank * d)
