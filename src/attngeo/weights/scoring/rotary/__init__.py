"""Scores of forms under rotary position embedding, whose form M_Δ = W_q R_Δ W_kᵀ depends on the offset Δ.

rotary_average      s̄ and norms averaged over all offsets, in closed form
symmetry_at         s(Δ) at single offsets; `symmetry_parts` gives numerator and denominator
factors_at          factors of M_Δ
offset_curves       s(Δ) of the layers of a model over offsets, its limit and its average over the window → OffsetCurves
frequency_summary   energy by speed and strongest pair of each layer, from the frequencies of a score table
"""

from attngeo.weights.scoring.rotary.average import RotaryAverage, rotary_average
from attngeo.weights.scoring.rotary.curves import OffsetCurve, OffsetCurves, offset_curves
from attngeo.weights.scoring.rotary.frequency_summary import FAST, SLOW, frequency_summary
from attngeo.weights.scoring.rotary.offsets import factors_at, symmetry_at, symmetry_parts

__all__ = [
    "FAST",
    "SLOW",
    "OffsetCurve",
    "OffsetCurves",
    "RotaryAverage",
    "factors_at",
    "frequency_summary",
    "offset_curves",
    "rotary_average",
    "symmetry_at",
    "symmetry_parts",
]
