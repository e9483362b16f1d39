"""The scale of an initialisation: the std that query and key weights are multiplied to."""

from __future__ import annotations

import math
from typing import TypeAlias

from torch import Tensor

from attngeo.errors import InputError

# None keeps the existing scale, "unit" is the std 1/√d, "half-unit" half of it, a number is a std.
Scale: TypeAlias = str | float | None
NAMED_SCALES = {"unit": 1.0, "half-unit": 0.5}  # in units of 1/√d


def target_std(scale: Scale, width: int) -> float | None:
    """Return the std that `scale` asks for with token vectors of `width` d; None: the existing std is kept.

    >>> target_std("unit", 64), target_std("half-unit", 64), target_std(0.02, 64), target_std(None, 64)
    (0.125, 0.0625, 0.02, None)
    """
    if scale is None:
        return None
    if isinstance(scale, str) and scale in NAMED_SCALES:
        return NAMED_SCALES[scale] / math.sqrt(width)
    try:
        std = math.nan if isinstance(scale, (str, bool)) else float(scale)
    except TypeError:
        std = math.nan
    if not 0 < std < math.inf:
        raise InputError(f"scale is {scale!r}, expected None, 'unit', 'half-unit' or a positive number")
    return std


def rescale_(weight: Tensor, std: float | None) -> None:
    """Multiply `weight` in place so that its root mean square is `std`; None leaves it unchanged."""
    if std is not None:
        weight.mul_(std / rms(weight))


def rms(weight: Tensor) -> float:
    """Return the root mean square of `weight`, which is the std of weights drawn with mean 0."""
    return float(weight.double().square().mean().sqrt())


def check_rescalable(weight: Tensor, what: str, std: float | None) -> None:
    """Raise InputError where `weight` is not finite, or all zero so that no factor gives it the std `std`."""
    now = rms(weight)
    if not math.isfinite(now):
        raise InputError(f"{what} contain NaN or infinity; finite weights expected")
    if now == 0 and std is not None:
        raise InputError(f"{what} have std 0, so that no factor gives them std {std:.3g}")


def name_with_scale(name: str, scale: Scale) -> str:
    """Return "symmetric, unit scale", "symmetric, std 0.02" or "symmetric"."""
    return name if scale is None else f"{name}, {scale} scale" if scale in NAMED_SCALES else f"{name}, std {scale}"
