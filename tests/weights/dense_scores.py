"""The definitions of the scores, computed on a dense float64 form: the reference for the code that uses factors."""

from __future__ import annotations

import numpy as np


def symmetry(form: np.ndarray) -> float:
    """Return (‖M_s‖² − ‖M_a‖²)/‖M‖², with M_s and M_a the symmetric and skew-symmetric parts of M."""
    symmetric, skew = (form + form.T) / 2, (form - form.T) / 2
    return float((np.sum(symmetric**2) - np.sum(skew**2)) / np.sum(form**2))


def directionality(form: np.ndarray, gamma: float = 2.0) -> float:
    """Return (R − C)/(R + C), 0 where R + C = 0."""
    rows, columns = (excess(np.linalg.norm(form, axis=axis), gamma) for axis in (1, 0))
    return float((rows - columns) / (rows + columns)) if rows + columns > 0 else 0.0


def excess(norms: np.ndarray, gamma: float) -> float:
    """Return the sum of norms − threshold over the norms above the threshold mean + γ·std."""
    threshold = norms.mean() + gamma * norms.std(ddof=1)
    return float(np.sum(norms[norms > threshold] - threshold))


def form(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return M = W_q W_kᵀ of factors [d, r], in float64."""
    return query.astype(np.float64) @ key.astype(np.float64).T
