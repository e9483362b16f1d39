"""Scores of forms under rotary position embedding, whose form M_Δ = W_q R_Δ W_kᵀ depends on the offset Δ.

rotary_average      s̄ and norms averaged over all offsets, in closed form
symmetry_at         s(Δ) at single offsets; `symmetry_parts` gives numerator and denominator
factors_at          factors of M_Δ
"""

from attngeo.weights.scoring.rotary.average import RotaryAverage, rotary_average
from attngeo.weights.scoring.rotary.offsets import factors_at, symmetry_at, symmetry_parts

__all__ = ["RotaryAverage", "factors_at", "rotary_average", "symmetry_at", "symmetry_parts"]
