"""The form under rotary position embedding at single offsets Δ = key position − query position.

M_Δ  = W_q R_Δ W_kᵀ                                           R_Δ rotates pair f by Δ·θ_f
s(Δ) = 2⟨M_Δ, M_{−Δ}ᵀ⟩ / (‖M_Δ‖² + ‖M_{−Δ}‖²)  ∈ [−1, 1]
"""

from __future__ import annotations

import numpy as np

from attngeo.arrays import Floats
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.symmetry import symmetry_ratio


def factors_at(query: Floats, key: Floats, rotary: RotaryPairs, offset: float) -> tuple[Floats, Floats]:
    """Return factors of M_Δ = W_q R_Δ W_kᵀ at one offset, the attention factor included.

    query: [d_q, r]
    key:   [d_k, r]
    """
    scale = rotary.scale(query.shape[1])  # [r]
    rotation = _rotations(rotary, query.shape[1], np.array([offset]))[0]  # [r, r]
    return query * scale, (key * scale) @ rotation.T


def symmetry_at(query: Floats, key: Floats, rotary: RotaryPairs, offsets: Floats) -> Floats:
    """Return s(Δ) of one form at each of the offsets [k], as `[k]`.

    query, key: [d, r]
    """
    numerators, denominators = symmetry_parts(query, key, rotary, offsets)
    return symmetry_ratio(numerators, denominators)  # type: ignore[no-any-return]


def symmetry_parts(query: Floats, key: Floats, rotary: RotaryPairs, offsets: Floats) -> tuple[Floats, Floats]:
    """Return numerator and denominator of s(Δ), divided by 2, at each of the offsets [k], as two arrays `[k]`.

        ⟨M_Δ, M_{−Δ}ᵀ⟩ = tr(R_Δ C R_{−Δ} C)        C = W_kᵀ W_q
        ‖M_{±Δ}‖²      = tr(R_{∓Δ} A R_{±Δ} B)      A = W_qᵀ W_q, B = W_kᵀ W_k

    Averages of s over a set of offsets divide the sum of the numerators by the sum of the denominators.
    """
    scale = rotary.scale(query.shape[1])
    query, key = query * scale, key * scale
    cross, gram_query, gram_key = key.T @ query, query.T @ query, key.T @ key  # [r, r]
    numerators, denominators = [], []
    for some in np.array_split(np.asarray(offsets, np.float64), max(1, len(offsets) // 256)):
        rotation = _rotations(rotary, query.shape[1], some)  # [k, r, r]
        back = rotation.swapaxes(-1, -2)
        numerators.append(((rotation @ cross @ back) * cross.T).sum((-1, -2)))
        norms = (back @ gram_query @ rotation + rotation @ gram_query @ back) * gram_key
        denominators.append(norms.sum((-1, -2)) / 2)
    return np.concatenate(numerators), np.concatenate(denominators)


def _rotations(rotary: RotaryPairs, size: int, offsets: Floats) -> Floats:
    """Return R_Δ for each offset [k], as `[k, r, r]`."""
    rotations = np.tile(np.eye(size), (len(offsets), 1, 1))
    angles = offsets[:, None] * rotary.frequencies  # [k, n]
    first, second = rotary.pairs[:, 0], rotary.pairs[:, 1]
    rotations[:, first, first] = rotations[:, second, second] = np.cos(angles)
    rotations[:, first, second] = -np.sin(angles)
    rotations[:, second, first] = np.sin(angles)
    return rotations
