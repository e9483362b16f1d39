"""The definitions of the scores, on a dense float64 form: what the factored code is held against."""

from __future__ import annotations

import numpy as np


def symmetry(form: np.ndarray) -> float:
    """‖M_s‖² − ‖M_a‖² over ‖M‖²."""
    even, odd = (form + form.T) / 2, (form - form.T) / 2
    return float((np.sum(even**2) - np.sum(odd**2)) / np.sum(form**2))


def directionality(form: np.ndarray, gamma: float = 2.0) -> float:
    """(R − C)/(R + C)."""
    rows, columns = (above(np.linalg.norm(form, axis=axis), gamma) for axis in (1, 0))
    return float((rows - columns) / (rows + columns)) if rows + columns > 0 else 0.0


def above(norms: np.ndarray, gamma: float) -> float:
    threshold = norms.mean() + gamma * norms.std(ddof=1)
    return float(np.sum(norms[norms > threshold] - threshold))


def form(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """M = W_q W_kᵀ of factors [d, r], in float64."""
    return query.astype(np.float64) @ key.astype(np.float64).T
