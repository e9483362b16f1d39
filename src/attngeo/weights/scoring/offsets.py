"""The form under rotary position embedding at single offsets Δ = key position − query position, and curves over them.

    M_Δ  = W_q R_Δ W_kᵀ                                           R_Δ rotates pair f by Δ·θ_f
    s(Δ) = 2⟨M_Δ, M_{−Δ}ᵀ⟩ / (‖M_Δ‖² + ‖M_{−Δ}‖²)  ∈ [−1, 1]

    ⟨M_Δ, M_{−Δ}ᵀ⟩ = tr(R_Δ C R_{−Δ} C)       C = W_kᵀ W_q
    ‖M_Δ‖²         = tr(R_Δ B R_{−Δ} A)       A = W_qᵀ W_q, B = W_kᵀ W_k

A rotation is linear in the cosines and sines of its angles: R_Δ = Σ_f (c_f P_f + s_f J_f), with c_f = cos Δθ_f,
s_f = sin Δθ_f, P_f the identity on pair f and J_f its quarter turn; all dimensions that do not rotate are one more P
with c = 1, s = 0. Numerator and denominator of s(Δ) are thus quadratic forms of the cosines and sines, with
coefficients that are computed once for all offsets:

    tr(R_Δ Y R_{−Δ} Z) = cᵀ K c + sᵀ L s + (terms odd in Δ),    K_fg = tr(P_f Y P_g Z),  L_fg = tr(J_f Y J_gᵀ Z)

The numerator is even in Δ and the denominator is averaged over ±Δ, so the odd terms cancel.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.arguments import whole_number
from attngeo.arrays import Floats
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.threads import shared_cores
from attngeo.weights.layout.layer import Layer, layer_form_factors
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.formulas import bounded_ratio
from attngeo.weights.scoring.layer import side_by_side
from attngeo.weights.scoring.rotary import rotary_average
from attngeo.weights.sources.open import CheckpointRef

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAST_OFFSET = 4096
_BLOCK = 8192  # offsets whose cosines are held at once


def factors_at(query: Floats, key: Floats, rotary: RotaryPairs, offset: float) -> tuple[Floats, Floats]:
    """Return factors of M_Δ = W_q R_Δ W_kᵀ at one offset, the attention factor included.

    query: [d_q, r]
    key:   [d_k, r]
    """
    scale = rotary.scale(query.shape[1])  # [r]
    rotation = _rotation(rotary, query.shape[1], offset)  # [r, r]
    return query * scale, (key * scale) @ rotation.T


def symmetry_at(query: Floats, key: Floats, rotary: RotaryPairs, offsets: Floats) -> Floats:
    """Return s(Δ) of one form at each of the offsets [k], as `[k]`.

    query, key: [d, r]
    """
    return bounded_ratio(*symmetry_parts(query[None], key[None], rotary, offsets))  # type: ignore[no-any-return]


def symmetry_parts(query: Floats, key: Floats, rotary: RotaryPairs, offsets: Floats) -> tuple[Floats, Floats]:
    """Return numerator and denominator of s(Δ), divided by 2, at each of the offsets [k], as two arrays `[k]`.

    query: [G, d, r], the queries of each key head, summed over the query heads that share it
    key:   [G, d, r]

    One head has G = 1; a layer form has all its key heads. Averages of s over a set of offsets divide the sum of the
    numerators by the sum of the denominators.
    """
    groups, d, size = query.shape
    scale = rotary.scale(size)
    query, key = ((w * scale).swapaxes(0, 1).reshape(d, -1) for w in (query, key))  # [d, G·r]
    turn, owner = _quarter_turn(rotary, size, groups), _owners(rotary, size, groups)
    cross = key.T @ query  # [G·r, G·r]
    above = _coefficients(cross, cross, turn, owner)
    below = _coefficients(key.T @ key, query.T @ query, turn, owner)
    numerators: list[Floats] = []
    denominators: list[Floats] = []
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


def _rotation(rotary: RotaryPairs, size: int, offset: float) -> Floats:
    """Return R_Δ, `[r, r]`."""
    rotation = np.eye(size)
    angles = offset * rotary.frequencies  # [n]
    first, second = rotary.pairs.T
    rotation[first, first] = rotation[second, second] = np.cos(angles)
    rotation[first, second] = -np.sin(angles)
    rotation[second, first] = np.sin(angles)
    return rotation


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
    """The symmetry of all layers of a model that rotate, over offsets."""

    model: str
    offsets: Floats  # [k]
    layers: tuple[OffsetCurve, ...]

    def __repr__(self) -> str:
        return f"OffsetCurves({self.model}, {len(self.layers)} layers, offsets 0 to {self.offsets[-1]:.0f})"

    def plot(self) -> Figure:
        """Draw s(Δ) of all layers, and for each layer s(0), the average over the window and the limit."""
        return draw("rotary_figure", None, [self])


def offset_curves(
    ref: CheckpointRef,
    *,
    last: int = LAST_OFFSET,
    num_heads: int | None = None,
    stack: str | Collection[str] | None = None,
    layers: int | Collection[int] | None = None,
    unproven: bool = False,
) -> OffsetCurves:
    """Return the symmetry of the layers of `ref` over the offsets 0 to `last`; the other options are those of `score`.

    Layers that do not rotate, cross-attention, and layers with several position axes are left out. A model of which no
    layer is known to rotate raises InputError.
    """
    whole_number(last, "last")
    offsets = np.arange(last + 1.0)
    curves, rotates = [], False
    opened = open_layers(ref, num_heads=num_heads, stack=stack, layers=layers, unproven=unproven)
    with opened as source, shared_cores():
        for weights in source:
            if weights.rotary is not None:
                rotates = True
                if weights.rotary.axes is None and not weights.cross:
                    curves.append(_layer_curve(weights, weights.rotary, offsets))
        if not rotates:
            raise InputError(f"{source.model}: no layer is known to rotate queries and keys by their positions")
        return OffsetCurves(source.model, offsets, tuple(curves))


def _layer_curve(weights: Layer, rotary: RotaryPairs, offsets: Floats) -> OffsetCurve:
    """Return the curve of a layer form."""
    query, key = (side.astype(np.float64) for side in (weights.query, weights.key))
    query, key = layer_form_factors(query, key)  # [G, d, r]
    last = len(offsets)
    window = rotary.window
    count = max(last, window or 0)
    numerators, denominators = symmetry_parts(query, key, rotary, np.arange(float(count)))
    average = None if window is None else float(bounded_ratio(numerators[:window].sum(), denominators[:window].sum()))
    return OffsetCurve(
        stack=weights.stack,
        layer=weights.layer,
        symmetry=bounded_ratio(numerators[:last], denominators[:last]),
        limit=float(rotary_average(side_by_side(query), side_by_side(key), rotary, len(key)).symmetry),
        window=window,
        window_average=average,
    )
