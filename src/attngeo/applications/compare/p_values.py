"""P-values from random draws, and how they are written."""

from __future__ import annotations

from attngeo.arrays import Floats


def p_value(observed: float, null: Floats) -> float:
    """Return (1 + number of draws at or above the observed statistic) / (1 + number of draws).

    >>> p_value(0.9, np.zeros(999)), p_value(np.nan, np.zeros(999))
    (0.001, 1.0)
    """
    below = null < observed - 1e-12  # False for NaN, which is evidence of nothing
    return (1 + int((~below).sum())) / (1 + len(null))


def p_text(p: float, draws: int) -> str:
    """Return a p-value as text that says whether it is the smallest that so many draws can give.

    >>> p_text(0.001, 999), p_text(0.002, 999)
    ('p ≤ 0.001', 'p = 0.002')
    """
    return f"p {'≤' if p * (draws + 1) < 1.5 else '='} {p:.2g}"
