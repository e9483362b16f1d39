"""`offset_curves`: the symmetry s(Δ) of a model's layers over offsets, its limit, its average over the window."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attngeo.arguments import whole_number
from attngeo.arrays import Floats
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.threads import shared_cores
from attngeo.weights.layout.layer import Layer, layer_form_factors
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.rotary.average import rotary_average
from attngeo.weights.scoring.rotary.offsets import symmetry_parts
from attngeo.weights.scoring.symmetry import symmetry_ratio
from attngeo.weights.sources.open import CheckpointRef

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAST_OFFSET = 4096


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
        return draw("offset_figure", self)


def offset_curves(
    ref: CheckpointRef,
    *,
    last: int = LAST_OFFSET,
    num_heads: int | None = None,
    stack: str | Collection[str] | None = None,
    layers: int | Collection[int] | None = None,
    unproven: bool = False,
    progress: Callable[[int, int], None] | None = None,
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
        for done, weights in enumerate(source, 1):
            if weights.rotary is not None:
                rotates = True
                if weights.rotary.axes is None and not weights.cross:
                    curves.append(_layer_curve(weights, weights.rotary, offsets))
            if progress is not None:
                progress(done, source.count)
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
    average = None if window is None else float(symmetry_ratio(numerators[:window].sum(), denominators[:window].sum()))
    return OffsetCurve(
        stack=weights.stack,
        layer=weights.layer,
        symmetry=symmetry_ratio(numerators[:last], denominators[:last]),
        limit=float(rotary_average(query, key, rotary).symmetry),
        window=window,
        window_average=average,
    )
