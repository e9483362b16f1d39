"""Symmetry and norms of forms under rotary position embedding (RoPE).

Queries and keys are rotated by their positions, so the form depends on the offset Δ = key position − query position:

    M_Δ  = W_q R_Δ W_kᵀ                                           R_Δ rotates pair f by Δ·θ_f
    s(Δ) = 2⟨M_Δ, M_{−Δ}ᵀ⟩ / (‖M_Δ‖² + ‖M_{−Δ}‖²)  ∈ [−1, 1]        1: swapping two tokens and their positions
                                                                   changes nothing
    s̄    = the same, numerator and denominator each averaged over all offsets

The average has a closed form. Write the two dimensions of a rotary pair as one complex dimension, u = q₁ + i q₂ and
v = k₁ + i k₂. A rotation multiplies it by e^{iΔθ}, and the average over offsets keeps products within a pair and sets
products between different pairs to zero. So s̄ is the symmetry score of the complex forms U_f V_fᴴ, summed over pairs,
plus the form of the dimensions that do not rotate:

    s̄ = (½ Σ_f Re tr(C_f C_f) + tr(C C)) / (½ Σ_f tr(U_fᴴU_f V_fᴴV_f) + ‖M_fixed‖²),   C_f = V_fᴴ U_f

The limit holds for different, non-zero frequencies. All functions accept NumPy arrays or torch tensors with any number
of leading batch axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from attngeo.arrays import Array, Floats, is_torch, namespace
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.norms import column_norms, row_norms
from attngeo.weights.scoring.symmetry import squared_norm, symmetry_ratio, trace_of_square


@dataclass(frozen=True, eq=False)
class RotaryAverage(Generic[Array]):
    """Averages over all offsets: s̄, and the root mean square of each row norm and column norm."""

    symmetry: Array  # [...], NaN where the widths differ
    rows: Array  # [..., d_q]
    columns: Array  # [..., d_k]


def rotary_average(query: Array, key: Array, rotary: RotaryPairs) -> RotaryAverage[Array]:
    """Return s̄ and the mean norms of each form of a batch.

    query: [..., G, d_q, r], the queries of each key head, summed over the query heads that share it
    key:   [..., G, d_k, r]

    One head has G = 1; a layer form has all its key heads.

    >>> w = np.random.default_rng(0).normal(size=(1, 64, 8))
    >>> rotary = RotaryPairs.halves([1.0, 0.3, 0.1, 0.03])
    >>> float(rotary_average(w, w, rotary).symmetry.round(6))
    1.0
    """
    xp = namespace(query)
    turning_query, fixed_query = _split(query, rotary)  # [..., n, d_q, G] complex, [..., d_q, G·u]
    turning_key, fixed_key = _split(key, rotary)
    gram_query, gram_key = _gram(turning_query, turning_query), _gram(turning_key, turning_key)  # [..., n, G, G]
    fixed_gram_query, fixed_gram_key = _gram(fixed_query, fixed_query), _gram(fixed_key, fixed_key)  # [..., G·u, G·u]

    rows = _half_squares(turning_query, gram_key) + row_norms(fixed_query, fixed_gram_key) ** 2  # [..., d_q]
    columns = _half_squares(turning_key, gram_query) + column_norms(fixed_key, fixed_gram_query) ** 2  # [..., d_k]
    norm = (gram_query * gram_key.conj()).real.sum((-1, -2)).sum(-1) / 2  # [...], over n pairs
    norm = norm + squared_norm(fixed_gram_query, fixed_gram_key)
    if query.shape[-2] == key.shape[-2]:
        trace = trace_of_square(_gram(turning_key, turning_query)).real.sum(-1) / 2  # [...]
        trace = trace + trace_of_square(_gram(fixed_key, fixed_query))
        symmetry = symmetry_ratio(trace, norm)
    else:
        symmetry = norm * np.nan
    return RotaryAverage(symmetry, xp.sqrt(rows), xp.sqrt(columns))


def _split(w: Any, rotary: RotaryPairs) -> tuple[Any, Any]:
    """Split factors `[..., G, d, r]` into rotating pairs, complex `[..., n, d, G]`, and the rest, `[..., d, G·u]`."""
    size = w.shape[-1]
    xp = namespace(w)
    scale = rotary.scale(size)
    w = w * (w.new_tensor(scale) if is_torch(w) else scale.astype(w.dtype))
    turning = w[..., rotary.turning[:, 0]] + 1j * w[..., rotary.turning[:, 1]]  # [..., G, d, n]
    fixed = xp.moveaxis(w[..., rotary.fixed(size)], -3, -2)  # [..., d, G, u]
    return turning.swapaxes(-1, -3), fixed.reshape(*fixed.shape[:-2], -1)


def _gram(left: Any, right: Any) -> Any:
    """Return leftᴴ right of matrices `[..., d, k]`, as `[..., k, k]`."""
    return left.conj().swapaxes(-1, -2) @ right


def _half_squares(factor: Any, gram: Any) -> Any:
    """Return ½ Σ_f diag(F_f G_f F_fᴴ) of factors `[..., n, d, G]` and Gram matrices `[..., n, G, G]`, as `[..., d]`."""
    return ((factor @ gram) * factor.conj()).real.sum(-1).sum(-2) / 2


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
