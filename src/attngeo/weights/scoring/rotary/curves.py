"""`offset_curves`: the symmetry s(Δ) of the layers of a model over offsets, its limit and its average over the window.

A rotation is linear in the cosines and sines of its angles: R_Δ = Σ_f (c_f P_f + s_f J_f), with c_f = cos Δθ_f,
s_f = sin Δθ_f, P_f the identity on pair f and J_f its quarter turn; all dimensions that do not rotate are one more P with
c = 1, s = 0. Numerator and denominator of s(Δ) are thus quadratic forms of the cosines and sines, with coefficients that
are computed once:

    tr(R_Δ Y R_{−Δ} Z) = cᵀ K c + sᵀ L s + (terms odd in Δ),   K_fg = tr(P_f Y P_g Z),  L_fg = tr(J_f Y J_gᵀ Z)

The numerator is even in Δ and the denominator is averaged over ±Δ, so the odd terms cancel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.arrays import Floats
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.threads import shared_cores
from attngeo.weights.layout.attention_weights import AttentionWeights
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.rotary.average import rotary_average
from attngeo.weights.scoring.symmetry import symmetry_ratio
from attngeo.weights.sources.checkpoint import Checkpoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

LAST_OFFSET = 4096
_BLOCK = 8192  # offsets whose cosines are held at once


@dataclass(frozen=True, eq=False)
class OffsetCurve:
    """The symmetry of one layer form over offsets."""

    stack: str
    layer: int
    symmetry: Floats  # [k], s(Δ) at each offset
    limit: float  # s̄, the average over all offsets
    window: int | None  # number of positions the model was made for; None: unknown
    window_average: float | None  # the average over the offsets 0 to window − 1


@dataclass(frozen=True, eq=False)
class OffsetCurves(Drawable):
    """The symmetry of all layers of a model that rotate, over offsets.

    >>> import numpy as np
    >>> config = {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    """

    model: str
    offsets: Floats  # [k]
    layers: tuple[OffsetCurve, ...]

    def plot(self) -> Figure:
        """Draw s(Δ) of all layers, and for each layer s(0), the average over the window and the limit."""
        return draw("offset_figure", self)


def symmetry_curve(query: Floats, key: Floats, rotary: RotaryPairs, offsets: Floats) -> tuple[Floats, Floats]:
    """Return numerator and denominator of s(Δ), divided by 2, at each of the offsets [k], as two arrays `[k]`.

    query: [G, d, r], the queries of each key head, summed over the query heads that share it
    key:   [G, d, r]

    Averages of s over a set of offsets divide the sum of the numerators by the sum of the denominators.
    """
    groups, d, size = query.shape
    scale = rotary.scale(size)
    query, key = ((w * scale).swapaxes(0, 1).reshape(d, -1) for w in (query, key))  # [d, G·r]
    turn, owner = _quarter_turn(rotary, size, groups), _owners(rotary, size, groups)
    cross = key.T @ query  # [G·r, G·r]
    above = _coefficients(cross, cross, turn, owner)
    below = _coefficients(key.T @ key, query.T @ query, turn, owner)
    numerators, denominators = [], []
    for some in np.array_split(np.asarray(offsets, np.float64), -(-len(offsets) // _BLOCK)):
        angles = some[:, None] * np.append(rotary.turning_frequencies, 0.0)  # [k, n + 1]
        cosines, sines = np.cos(angles), np.sin(angles)
        for (even, odd), values in ((above, numerators), (below, denominators)):
            values.append(((cosines @ even) * cosines + (sines @ odd) * sines).sum(1))
    return np.concatenate(numerators), np.concatenate(denominators)


def _quarter_turn(rotary: RotaryPairs, size: int, groups: int) -> tuple[Any, Floats]:
    """Return which dimension takes the place of each of G·r under a quarter turn, and with which sign."""
    source, sign = np.arange(size), np.zeros(size)  # a dimension that does not rotate is turned to 0
    first, second = rotary.turning.T
    source[first], sign[first] = second, -1.0
    source[second], sign[second] = first, 1.0
    heads = size * np.arange(groups)[:, None]
    return (heads + source).ravel(), np.tile(sign, groups)


def _owners(rotary: RotaryPairs, size: int, groups: int) -> Floats:
    """Return which pair each of the G·r dimensions belongs to, `[G·r, n + 1]`; the last one holds all others."""
    n = len(rotary.turning)
    owner = np.full(size, n)
    owner[rotary.turning.ravel()] = np.repeat(np.arange(n), 2)
    owners: Floats = np.eye(n + 1)[np.tile(owner, groups)]
    return owners


def _coefficients(left: Floats, right: Floats, turn: tuple[Any, Floats], owner: Floats) -> tuple[Floats, Floats]:
    """Return K and L, each `[n + 1, n + 1]`, for Y = left and Z = right."""
    source, sign = turn
    turned = sign[:, None] * left[np.ix_(source, source)] * sign  # [G·r, G·r], J Y Jᵀ
    return owner.T @ (left * right.T) @ owner, owner.T @ (turned * right.T) @ owner


def offset_curves(
    ref: str | os.PathLike[str] | Mapping[str, Any] | nn.Module | Checkpoint,
    *,
    last: int = LAST_OFFSET,
    num_heads: int | None = None,
    stack: str | Collection[str] | None = None,
    layers: int | Collection[int] | None = None,
    unproven: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> OffsetCurves:
    """Return the symmetry of the layers of `ref` over the offsets 0 to `last`; the other options are those of `score`.

    Layers that do not rotate, cross-attention, and layers with several position axes are left out. A model without any
    layer that rotates raises InputError.
    """
    offsets = np.arange(last + 1.0)
    curves = []
    opened = open_layers(ref, num_heads=num_heads, stack=stack, layers=layers, unproven=unproven)
    with opened as source, shared_cores():
        for done, weights in enumerate(source, 1):
            if _has_curve(weights):
                curves.append(_layer_curve(weights, offsets))
            if progress is not None:
                progress(done, source.count)
        if not curves:
            raise InputError(f"{source.model}: no layer is known to rotate queries and keys along one position axis")
        return OffsetCurves(source.model, offsets, tuple(curves))


def _has_curve(weights: AttentionWeights) -> bool:
    rotary = weights.rotary
    return rotary is not None and not weights.cross and getattr(rotary, "axes", None) is None


def _layer_curve(weights: AttentionWeights, offsets: Floats) -> OffsetCurve:
    """Return the curve of a layer form."""
    assert weights.rotary is not None
    rotary = weights.rotary
    heads, d, size = weights.query.shape
    query = weights.query.reshape(-1, weights.group_size, d, size).sum(1, dtype=np.float64)  # [G, d, r]
    key = weights.key.astype(np.float64)
    last = len(offsets)
    window = rotary.window
    count = max(last, window or 0)
    numerators, denominators = symmetry_curve(query, key, rotary, np.arange(float(count)))
    average = None if window is None else float(numerators[:window].sum() / denominators[:window].sum())
    return OffsetCurve(
        stack=weights.stack,
        layer=weights.layer,
        symmetry=symmetry_ratio(numerators[:last], denominators[:last]),
        limit=float(rotary_average(query, key, rotary).symmetry),
        window=window,
        window_average=average,
    )
