"""The frequencies θ_f of rotary embedding, by scaling type.

For n pairs made of m = 2n dimensions and base b, the plain frequencies are θ_f = b^(−2f/m), f = 0 … n − 1. A scaling
type changes them so that a model can read more positions than it was first trained on:

    linear        θ / s
    dynamic       θ within the window; only beyond it does the base grow
    proportional  b^(−2f/r) for the first share of all r/2 pairs of the head, 0 for the rest; then divided by s
    llama3        θ / s for slow pairs, θ for fast ones, a mixture between
    yarn          θ / s for slow pairs, θ for fast ones, a linear ramp between
    longrope      θ / s_f with one number per pair
    divided       the same, without an attention factor: the numbers that GGUF files store for llama3

yarn and longrope also multiply queries and keys by an attention factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from attngeo.arrays import Floats
from attngeo.weights.layout.rope.settings import RopeConfigError, RopeSettings


def frequencies(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    """Return θ [n] of the pairs that `size` dimensions form, and the attention factor.

    >>> from attngeo.weights.layout.rope.settings import RopeSettings
    >>> frequencies(RopeSettings(base=100.0), 4)
    (array([1. , 0.1]), 1.0)
    """
    formula = _FORMULAS.get(settings.kind)
    if formula is None:
        raise RopeConfigError("rope_type", settings.kind, f"one of {', '.join(_FORMULAS)}")
    try:
        with np.errstate(all="ignore"):
            theta, factor = formula(settings, size)
    except (OverflowError, ValueError, ZeroDivisionError):  # numbers that no model has
        theta, factor = np.array([np.nan]), 1.0
    if not np.isfinite(theta).all() or not 0 < factor < math.inf:
        raise RopeConfigError("rope_theta", settings.base, f"numbers for {settings.kind} that give finite frequencies")
    return theta, factor


def _plain(base: float, size: int) -> Floats:
    return base ** -(np.arange(0, size, 2) / size)


def _default(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    return _plain(settings.base, size), 1.0


def _linear(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    return _plain(settings.base, size) / settings.positive("factor"), 1.0


def _proportional(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    """Return θ of all pairs of a head of this size; the last ones are 0."""
    theta = _plain(settings.base, size)
    theta[int(settings.share * size // 2) :] = 0.0
    return theta / settings.positive("factor", 1.0), 1.0


def _llama3(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    theta = _plain(settings.base, size)
    scale = settings.positive("factor")
    low, high = settings.positive("low_freq_factor"), settings.positive("high_freq_factor")
    if low == high:
        raise RopeConfigError("high_freq_factor", high, "another value than low_freq_factor")
    turns = theta * settings.original_window() / (2 * math.pi)  # turns of each pair within the original window
    kept = (turns - low) / (high - low)  # share of θ that is not divided
    mixed = kept * theta + (1 - kept) * theta / scale
    return np.where(turns < low, theta / scale, np.where(turns > high, theta, mixed)), 1.0


def _yarn(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    theta = _plain(settings.base, size)
    scale = settings.factor()
    # The pair that turns k times within the original window has b^(2f/m) = window / 2πk.
    first, last = (
        size * math.log(settings.original_window() / (2 * math.pi * turns)) / (2 * math.log(settings.base))
        for turns in (settings.positive("beta_fast", 32.0), settings.positive("beta_slow", 1.0))
    )
    if settings.flag("truncate", default=True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    divided = np.clip((np.arange(size // 2) - first) / (last - first or 1e-3), 0, 1)  # 0: θ, 1: θ / s
    return theta * (1 - divided) + theta / scale * divided, settings.attention_factor(_yarn_attention)


def _yarn_attention(settings: RopeSettings) -> float:
    scale = settings.factor()

    def magnitude(weight: float) -> float:
        return 1.0 if scale <= 1 else 0.1 * weight * math.log(scale) + 1.0

    weights = [settings.number(key, 0.0) for key in ("mscale", "mscale_all_dim")]
    return magnitude(weights[0]) / magnitude(weights[1]) if all(weights) else magnitude(1.0)


def _longrope(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    divisors = settings.numbers("short_factor", size // 2)  # within the original window
    return _plain(settings.base, size) / divisors, settings.attention_factor(_longrope_attention)


def _divided(settings: RopeSettings, size: int) -> tuple[Floats, float]:
    return _plain(settings.base, size) / settings.numbers("divisors", size // 2), 1.0


def _longrope_attention(settings: RopeSettings) -> float:
    scale = settings.factor()
    return 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(settings.original_window()))


_FORMULAS: dict[str, Callable[[RopeSettings, int], tuple[Floats, float]]] = {
    "default": _default,
    "axial": _default,  # the pairs of one axis
    "linear": _linear,
    "dynamic": _default,
    "proportional": _proportional,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "divided": _divided,
}
