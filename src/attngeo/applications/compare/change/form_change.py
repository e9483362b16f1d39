"""The relative change ‖M_A − M_B‖/‖M_A‖ and the cosine of two forms, from products of their factors.

    M_A − M_B = (Q_A − Q_B) K_Aᵀ + Q_B (K_A − K_B)ᵀ = U Vᵀ,   U = [Q_A − Q_B, Q_B],   V = [K_A, K_A − K_B]
    ‖M_A − M_B‖² = Σ (UᵀU)_ab (VᵀV)_ab
    ⟨M_A, M_B⟩ = (‖M_A‖² + ‖M_B‖² − ‖M_A − M_B‖²)/2 = Σ (Q_AᵀQ_B)_ab (K_AᵀK_B)_ab

The first two lines keep their digits where the models are nearly the same: the differences are taken before anything is
squared. Factors are stored transposed, [r, d], as in `weights.scoring`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attngeo.arrays import AnyFloats
from attngeo.io.threads import each
from attngeo.weights.scoring.layer import LayerFactors
from attngeo.weights.scoring.norms import gram_matrix, product
from attngeo.weights.scoring.symmetry import squared_norm

UNEQUAL = 4  # the product of two forms whose norms differ by more than this factor is lost in ‖M_A‖² + ‖M_B‖²
CANCELLED = 1e-3  # a sum this small beside its terms has lost float32 digits and is computed again in float64


@dataclass(frozen=True)
class FormChange:
    """How far one form is from another; NaN where only the first form (for the cosine: either form) is zero."""

    change: float  # ‖M_A − M_B‖/‖M_A‖; 0 where both are zero
    cosine: float  # ⟨M_A, M_B⟩/(‖M_A‖‖M_B‖)


def head_changes(
    a: LayerFactors,
    b: LayerFactors,
    pairs: Sequence[tuple[int, int]],
    norms: Sequence[tuple[float, float]],
) -> list[FormChange]:
    """Return the change of each pair of heads.

    pairs: (head of a, head of b)
    norms: (‖M_A‖, ‖M_B‖) of each pair
    """
    (query_a, key_a), (query_b, key_b) = a.heads, b.heads

    def work(item: tuple[tuple[int, int], tuple[float, float]]) -> FormChange:
        (i, j), both = item
        sides = query_a[i].mT, query_b[j].mT, key_a[i // a.group_size].mT, key_b[j // b.group_size].mT  # [r, d]
        return _change(*sides, both)

    _, d, r = query_a.shape
    return each(work, list(zip(pairs, norms, strict=True)), 4 * d * r * r)


def layer_change(a: LayerFactors, b: LayerFactors, norms: tuple[float, float]) -> FormChange:
    """Return the change of the layer form; norms: (‖M_A‖, ‖M_B‖)."""
    (query_a, key_a), (query_b, key_b) = a.form, b.form  # [d, G r]
    return _change(query_a.mT, query_b.mT, key_a.mT, key_b.mT, norms)


def head_cosines(
    a: LayerFactors, b: LayerFactors, pairs: Sequence[tuple[int, int]], norms: Sequence[tuple[float, float]]
) -> list[float]:
    """Return the cosine of each pair of heads, as in `head_changes`; the heads may differ in size."""
    (query_a, key_a), (query_b, key_b) = a.heads, b.heads

    def work(item: tuple[tuple[int, int], tuple[float, float]]) -> float:
        (i, j), both = item
        inner = _inner(query_a[i].mT, query_b[j].mT, key_a[i // a.group_size].mT, key_b[j // b.group_size].mT)
        return _ratio(inner, both[0] * both[1])

    _, d, r = query_a.shape
    return each(work, list(zip(pairs, norms, strict=True)), 2 * d * r * r)


def _change(
    query_a: AnyFloats, query_b: AnyFloats, key_a: AnyFloats, key_b: AnyFloats, norms: tuple[float, float]
) -> FormChange:
    norm_a, norm_b = norms
    if query_a.shape == query_b.shape:
        squared = squared_difference(query_a, query_b, key_a, key_b)
        inner = (norm_a**2 + norm_b**2 - squared) / 2
        if max(norms) > UNEQUAL * min(norms):
            inner = _inner(*(side.astype(np.float64) for side in (query_a, query_b, key_a, key_b)))
    else:  # heads of two sizes have no difference of factors, and their forms are far apart
        inner = _inner(query_a, query_b, key_a, key_b)
        squared = max(0.0, norm_a**2 + norm_b**2 - 2 * inner)
    change = math.sqrt(squared) / norm_a if norm_a > 0 else 0.0 if squared == 0 else math.nan
    return FormChange(change, _ratio(inner, norm_a * norm_b))


def squared_difference(query_a: AnyFloats, query_b: AnyFloats, key_a: AnyFloats, key_b: AnyFloats) -> float:
    """Return ‖M_A − M_B‖² of two forms whose factors [r, d] have the same shapes.

    >>> query, key = np.eye(4)[:2], np.eye(4)[2:]
    >>> squared_difference(query, query, key, 3 * key)  # M_B = 3 M_A, ‖M_A‖² = 2
    8.0
    """
    r = len(query_a)
    u, v = np.concatenate([query_a - query_b, query_b]), np.concatenate([key_a, key_a - key_b])  # [2r, d_q], [2r, d_k]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        gram_u, gram_v = _gram(u), _gram(v)  # [2r, 2r]
        squared = inner_product(gram_u, gram_v)
        terms = inner_product(gram_u[:r, :r], gram_v[:r, :r]) + inner_product(gram_u[r:, r:], gram_v[r:, r:])
    if squared > CANCELLED * terms and float(np.finfo(u.dtype).tiny / np.finfo(u.dtype).eps) < squared < math.inf:
        return squared
    if not (u[:r].any() or v[r:].any()):
        return 0.0
    scales = [float(np.abs(side).max()) or 1.0 for side in (u, v)]  # so that no square overflows
    u, v = (side.astype(np.float64) / scale for side, scale in zip((u, v), scales, strict=True))
    return max(0.0, inner_product(_gram(u), _gram(v))) * (scales[0] * scales[1]) ** 2


def _inner(query_a: AnyFloats, query_b: AnyFloats, key_a: AnyFloats, key_b: AnyFloats) -> float:
    """Return ⟨M_A, M_B⟩; the factors [r, d] of the two forms may differ in r."""
    sides = query_a, query_b, key_a, key_b
    scales = [float(np.abs(side).max()) or 1.0 for side in sides]  # so that no product overflows or vanishes
    query_a, query_b, key_a, key_b = (side / scale for side, scale in zip(sides, scales, strict=True))
    return inner_product(product(query_a, query_b.T), product(key_a, key_b.T)) * math.prod(scales)  # of [r_a, r_b]


def inner_product(a: AnyFloats, b: AnyFloats) -> float:
    """Return Σ a_ij b_ij."""
    return float(squared_norm(a, b))


def _gram(w: AnyFloats) -> AnyFloats:
    return gram_matrix(w.mT)  # type: ignore[no-any-return]


def _ratio(inner: float, norms: float) -> float:
    return max(-1.0, min(1.0, inner / norms)) if norms > 0 else math.nan
