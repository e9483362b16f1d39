"""Dominance: whether the columns or the rows of a bilinear form are more unequal in norm.

    dominance(M) = log(CV_rows / CV_columns)        CV = std/mean of the norms, std unbiased

Negative where columns (the context side) are more unequal, like the directionality. It uses every norm, not
only the few above a threshold, so its spread for random factors is small: about 1/√d.

The function accepts NumPy arrays or torch tensors with any number of leading batch axes.
"""

from __future__ import annotations

import numpy as np

from attngeo.arrays import Array, namespace
from attngeo.weights.scoring.directionality import ROUNDING, coefficient_of_variation


def dominance(rows: Array, columns: Array) -> Array:
    """Return log(CV of the row norms / CV of the column norms) of each form of a batch, `[...]`.

    rows:    [..., d_q], row norms ρ
    columns: [..., d_k], column norms κ

    It is NaN where a CV is 0 (all norms are equal, up to rounding) or does not exist (one norm, or all norms 0).

    >>> norms = np.array([1.0, 2.0, 3.0])
    >>> float(dominance(norms, norms)), float(dominance(10 + norms, norms).round(3))
    (0.0, -1.792)
    """
    xp = namespace(rows)
    of_rows, of_columns = coefficient_of_variation(rows), coefficient_of_variation(columns)  # [...]
    unequal = (of_rows > ROUNDING) & (of_columns > ROUNDING)  # False for NaN
    ratio = xp.where(unequal, of_rows, 1.0) / xp.where(unequal, of_columns, 1.0)
    logarithm: Array = xp.where(unequal, xp.log(ratio), np.nan)  # [...]
    return logarithm
