"""The best assignment of the heads of one layer to those of another: the largest total |cosine|.

Forms are given dense and normalised, one column per head, so that all cosines of two layers are one product.
"""

from __future__ import annotations

import numpy as np

from attngeo.arrays import AnyFloats, Floats, Ints


def unit_forms(query: AnyFloats, key: AnyFloats) -> AnyFloats:
    """Return the forms W_q W_kᵀ of n heads as columns of length 1, `[d², n]`; a form that is zero stays zero.

    query, key: [n, r, d]

    >>> unit_forms(np.full((1, 1, 2), 1e-30, np.float32), np.full((1, 1, 2), 3e-30, np.float32)).ravel().tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    query, key = (_relative(side) for side in (query, key))
    return unit_columns(query.swapaxes(1, 2) @ key)  # [n, d, d]


def _relative(side: AnyFloats) -> AnyFloats:
    """Return factors [n, r, d], each divided by its largest entry: no product or square leaves the range of float32."""
    largest = np.abs(side).max((1, 2), keepdims=True)  # [n, 1, 1]
    relative: AnyFloats = side / np.where(largest > 0, largest, 1)
    return relative


def unit_columns(forms: AnyFloats) -> AnyFloats:
    """Return forms [n, d, d] as columns of length 1, `[d², n]`; a form that is zero stays zero."""
    flat = forms.reshape(len(forms), -1).T  # [d², n]
    norms = np.sqrt(np.square(flat).sum(0, dtype=np.float64)).astype(flat.dtype)  # [n]
    return np.ascontiguousarray(np.divide(flat, norms, out=np.zeros_like(flat), where=norms > 0))


def best_assignment(values: AnyFloats) -> tuple[Ints, Ints]:
    """Return the rows and the columns of the assignment with the largest total value.

    values: [n_a, n_b]; min(n_a, n_b) rows and columns are paired

    >>> rows, columns = best_assignment(np.array([[0.1, 0.9], [0.8, 0.7]]))
    >>> columns.tolist()
    [1, 0]
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(values, maximize=True)
    return rows, columns


def matched_cosine(cosines: AnyFloats) -> float:
    """Return the mean |cosine| of the best assignment of `cosines` [n_a, n_b]."""
    sizes = np.abs(cosines)
    return float(sizes[best_assignment(sizes)].mean())


def cosine_matrix(a: AnyFloats, b: AnyFloats) -> Floats:
    """Return the cosines [n_a, n_b] of all pairs of unit columns, [d², n_a] and [d², n_b]."""
    cosines: Floats = (a.T @ b).astype(np.float64)
    return cosines
