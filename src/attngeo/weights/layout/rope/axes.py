"""Rotary pairs of image models, which follow the row or the column of a patch.

With m rotating dimensions, n = m/2 pairs and θ(k) the plain frequencies of k dimensions, the pairs are, in order:

    blocks       θ(m/2) for rows, then θ(m/2) for columns
    split        every other frequency of θ(m), from the first on, for rows; the others for columns
    interleaved  each frequency of θ(m/2) once for rows, once for columns
    separate     as blocks, but each axis pairs dimensions within its own half of the head
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attngeo.weights.layout.rope.frequencies import frequencies
from attngeo.weights.layout.rope.settings import RopeSettings
from attngeo.weights.layout.rotary import RotaryPairs

LAYOUTS = ("blocks", "split", "interleaved", "separate")


def on_two_axes(
    layout: str, settings: RopeSettings, size: int, first: int, make: Callable[..., RotaryPairs]
) -> RotaryPairs:
    """Return the pairs that `size` dimensions form, from dimension `first` on; `make` pairs halves or neighbours.

    >>> pairs = on_two_axes("blocks", RopeSettings(base=100.0), 8, 0, RotaryPairs.halves)
    >>> pairs.frequencies.tolist(), pairs.axes.tolist()
    ([1.0, 0.1, 1.0, 0.1], [0, 0, 1, 1])
    """
    half = size // 4  # pairs of one axis
    theta, factor = frequencies(settings, size if layout == "split" else size // 2)
    pairs = make(np.arange(2 * half), first).pairs  # [n, 2]
    axes = np.repeat([0, 1], half)
    if layout == "split":
        theta = np.concatenate([theta[0::2], theta[1::2]])
    elif layout == "interleaved":
        theta, axes = np.repeat(theta, 2), np.tile([0, 1], half)
    else:
        theta = np.tile(theta, 2)
    if layout == "separate":
        pairs = np.concatenate([make(np.arange(half), first + at).pairs for at in (0, size // 2)])
    return RotaryPairs(pairs, theta, factor, None, axes)
