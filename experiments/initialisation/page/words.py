"""How a figure of the experiment is printed in a page: rounded once, from the logs, with a minus sign.

final loss     3.649
difference     −0.117 [−0.135, −0.099]
steps saved    33% [30, 36]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.initialisation.statistics import Estimate


def loss_text(value: float) -> str:
    """Return a loss in nats with three decimals.

    >>> loss_text(3.6494)
    '3.649'
    """
    return f"{value:.3f}"


def difference_text(value: Estimate) -> str:
    """Return a difference of losses, with its 95% interval if it has one."""
    if math.isnan(value.low):
        return _signed(value.mean)
    return f"{_signed(value.mean)} [{_signed(value.low)}, {_signed(value.high)}]"


def saved_text(value: Estimate) -> str:
    """Return a share of steps in per cent, with its 95% interval if it has one."""
    if math.isnan(value.low):
        return f"{_percent(value.mean)}%"
    return f"{_percent(value.mean)}% [{_percent(value.low)}, {_percent(value.high)}]"


def p_text(p: float) -> str:
    """Return a p-value with two significant digits; empty where there is none."""
    return "" if math.isnan(p) else f"{p:.2g}"


def rate_text(rate: float) -> str:
    """Return a learning rate as people write it.

    >>> rate_text(0.0005), rate_text(0.0015)
    ('5e-4', '1.5e-3')
    """
    digits, _, exponent = f"{rate:e}".partition("e")
    return f"{float(digits):g}e{int(exponent)}"


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for their number by Holm's method; NaN stays NaN and does not count.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[index] = largest
    return adjusted


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _percent(value: float) -> str:
    return f"{100 * value:.0f}".replace("-", "−")
