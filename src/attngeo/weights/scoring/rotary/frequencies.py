"""What each rotary pair of a head contributes: its energy, its phase, and the offset at which it adds most.

    X = W_qᵀ W_k       α = (X_11 + X_22)/2,   β = (X_21 − X_12)/2   within a pair with frequency θ

The pair adds 2√(α² + β²) cos(Δθ − φ) to tr M_Δ, with the phase φ = atan2(β, α), so its preferred offset is φ/θ:
negative where the key is before the query. Its energy is its share of the mean of ‖M_Δ‖² over all offsets.
"""

from __future__ import annotations

import numpy as np

from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.rotary.heads import PairProducts
from attngeo.weights.scoring.rows import Row

# Column → polars type
FREQUENCY_COLUMNS = {
    "model": "String",
    "stack": "String",
    "layer": "Int64",
    "head": "Int64",
    "pair": "Int64",  # number of the rotating pair in the head, from 0
    "frequency": "Float64",  # θ in radians per position
    "energy": "Float64",  # share of all rotating pairs of the head; null where these are zero
    "alpha": "Float64",
    "beta": "Float64",
    "phase": "Float64",  # φ in radians; null where the rotating pairs are zero
    "preferred_offset": "Float64",  # φ/θ, key position − query position; null where they are zero
}


def frequency_rows(keys: Row, pairs: PairProducts, rotary: RotaryPairs) -> list[Row]:
    """Return one row per rotating pair of a head; `keys` are the columns that name the head."""
    total = float(pairs.energy.sum())
    phases = np.arctan2(pairs.beta, pairs.alpha)  # [n]
    frequencies = rotary.turning_frequencies
    return [
        keys
        | {
            "pair": pair,
            "frequency": float(frequencies[pair]),
            "energy": float(pairs.energy[pair]) / total if total > 0 else None,
            "alpha": float(pairs.alpha[pair]),
            "beta": float(pairs.beta[pair]),
            "phase": float(phases[pair]) if total > 0 else None,
            "preferred_offset": float(phases[pair] / frequencies[pair]) if total > 0 else None,
        }
        for pair in range(len(frequencies))
    ]
