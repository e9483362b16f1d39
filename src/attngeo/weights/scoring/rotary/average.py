"""Symmetry and norms of forms under rotary position embedding (RoPE), averaged over all offsets.

Queries and keys are rotated by their positions, so the form depends on the offset Δ = key position − query position:

    M_Δ  = W_q R_Δ W_kᵀ                                           R_Δ rotates pair f by Δ·θ_f
    s(Δ) = 2⟨M_Δ, M_{−Δ}ᵀ⟩ / (‖M_Δ‖² + ‖M_{−Δ}‖²)  ∈ [−1, 1]        1: swapping two tokens and their positions
                                                                   changes nothing
    s̄    = the same, numerator and denominator each averaged over all offsets

The average has a closed form: the plain scores, with each product of factors Z replaced by P(Z), its average under
conjugation by R_Δ. Between different pairs, and between rotated and unrotated dimensions, P(Z) is zero. Within a pair
it keeps the part that commutes with rotations,

    P(Z)_ff = α I + β J,    α = (Z_11 + Z_22)/2,    β = (Z_21 − Z_12)/2,    J = [[0, −1], [1, 0]]

and on unrotated dimensions it keeps everything. So only products within a pair are computed, 2/r of the plain ones. The
limit holds for different, non-zero frequencies. All functions accept NumPy arrays or torch tensors with any number of
leading batch axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from attngeo.arrays import Array, Ints, is_torch, namespace
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.symmetry import squared_norm, symmetry_ratio, trace_of_square


@dataclass(frozen=True, eq=False)
class RotaryAverage(Generic[Array]):
    """Averages over all offsets: s̄, and the root mean square of each row norm and column norm."""

    symmetry: Array  # [...], NaN where the widths differ
    rows: Array  # [..., d_q]
    columns: Array  # [..., d_k]


@dataclass(frozen=True, eq=False)
class RotarySums(Generic[Array]):
    """What some rotary pairs, or the unrotated dimensions, add to the averages over all offsets."""

    trace: Array  # [...], numerator of s̄; NaN where the widths differ
    squared_norm: Array  # [...], its denominator
    rows: Array  # [..., d_q], squares of the row norms
    columns: Array  # [..., d_k]
    energy: Array  # [...], Σ ‖q_a‖²‖k_a‖² over dimensions: how large the terms of `squared_norm` are

    def __add__(self, other: RotarySums[Array]) -> RotarySums[Array]:
        return RotarySums(
            self.trace + other.trace,
            self.squared_norm + other.squared_norm,
            self.rows + other.rows,
            self.columns + other.columns,
            self.energy + other.energy,
        )

    def double(self) -> RotarySums[Any]:
        """Return the sums, NumPy arrays, in float64."""
        values = (self.trace, self.squared_norm, self.rows, self.columns, self.energy)
        return RotarySums(*(np.asarray(value, np.float64) for value in values))

    def average(self) -> RotaryAverage[Array]:
        """Return the averages, once all pairs and the unrotated dimensions are added up."""
        roots = [namespace(squares).sqrt(squares.clip(0.0)) for squares in (self.rows, self.columns)]
        return RotaryAverage(symmetry_ratio(self.trace, self.squared_norm), *roots)


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
    query, key = query.swapaxes(-1, -2), key.swapaxes(-1, -2)  # [..., G, r, d]
    pairs = (pair_factors(query, rotary.turning), pair_factors(key, rotary.turning))
    sums = turning_sums(*pairs, rotary.factor) + fixed_sums(query, key, rotary)
    average: RotaryAverage[Array] = sums.average()
    return average


def pair_factors(w: Any, turning: Ints) -> Any:
    """Return the factors `[..., n, 2G, d]` of rotary pairs from factors `[..., G, r, d]`.

    turning: [n, 2], the dimensions of the pairs
    """
    *batch, groups, r, d = w.shape
    return w.reshape(*batch, groups * r, d)[..., rows_of_pairs(turning, groups, r), :]


def within_pairs(product: Any, turning: Ints, groups: int) -> Any:
    """Return the blocks `[n, 2G, 2G]` of a product `[G r, G r]` of factors that belong to one rotary pair each."""
    rows = rows_of_pairs(turning, groups, len(product) // groups)
    return product[rows[:, :, None], rows[:, None, :]]


def rows_of_pairs(turning: Ints, groups: int, r: int) -> Ints:
    """Return where the dimensions of each pair stand among those of all G key heads, `[n, 2G]`."""
    rows = turning[:, :, None] + r * np.arange(groups)  # [n, 2, G]
    return rows.reshape(len(turning), 2 * groups)


def turning_sums(query: Any, key: Any, factor: float, products: Sequence[Any] = ()) -> RotarySums[Any]:
    """Return what rotating pairs add to the averages, from their factors `[..., n, 2G, d]` and the attention factor.

    products: `[..., n, 2G, 2G]`, of the queries with themselves, of the keys with themselves and of both, where known
    """
    return _sums(query, key, commuting_part, factor, products)


def fixed_sums(query: Any, key: Any, rotary: RotaryPairs) -> RotarySums[Any]:
    """Return what the dimensions that do not rotate add to the averages, from factors `[..., G, r, d]`."""
    size = query.shape[-2]
    fixed, scale = rotary.fixed(size), rotary.scale(size)[:, None]
    factors = []
    for w in (query, key):
        some = w[..., fixed, :] * _like(scale[fixed], w)  # [..., G, u, d]
        factors.append(some.reshape(*w.shape[:-3], 1, -1, w.shape[-1]))  # [..., 1, G·u, d]
    return _sums(factors[0], factors[1], lambda product: product, 1.0)


def _sums(query: Any, key: Any, average: Any, factor: float, products: Sequence[Any] = ()) -> RotarySums[Any]:
    """Return the sums over blocks of dimensions, given as factors `[..., n, k, d]`.

    average: P, which averages products [..., n, k, k] over offsets
    factor:  what multiplies both factors, the attention factor
    products: as for `turning_sums`
    """
    square = query.shape[-1] == key.shape[-1]
    if not products:
        query_t, key_t = query.swapaxes(-1, -2), key.swapaxes(-1, -2)  # [..., n, d, k]
        products = [query @ query_t, key @ key_t, query @ key_t if square else None]  # [..., n, k, k]
    gram_query, gram_key = average(products[0]), average(products[1])
    norm = factor**4 * squared_norm(gram_query, gram_key).sum(-1)
    return RotarySums(
        factor**4 * trace_of_square(average(products[2])).sum(-1) if square else norm * np.nan,
        norm,
        factor**4 * _column_sums(gram_key @ query, query),
        factor**4 * _column_sums(gram_query @ key, key),
        factor**4 * (gram_query.diagonal(0, -2, -1) * gram_key.diagonal(0, -2, -1)).sum((-1, -2)),
    )


def _column_sums(a: Any, b: Any) -> Any:
    """Return Σ_nk a_nkd b_nkd of arrays `[..., n, k, d]`, as `[..., d]`."""
    # torch's einsum would copy both into another order.
    return (a * b).sum((-3, -2)) if is_torch(a) else np.einsum("...nkd,...nkd->...d", a, b)


def commuting_part(product: Array) -> Array:
    """Return P(Z) = [[α, −β], [β, α]] of products `[..., 2G, 2G]` = [[Z_11, Z_12], [Z_21, Z_22]] of rotary pairs."""
    xp = namespace(product)
    half = product.shape[-1] // 2
    alpha = (product[..., :half, :half] + product[..., half:, half:]) / 2  # [..., G, G]
    beta = (product[..., half:, :half] - product[..., :half, half:]) / 2
    upper, lower = xp.concatenate([alpha, -beta], -1), xp.concatenate([beta, alpha], -1)  # [..., G, 2G]
    part: Array = xp.concatenate([upper, lower], -2)
    return part


def _like(values: Any, w: Any) -> Any:
    return w.new_tensor(values) if is_torch(w) else values.astype(w.dtype)
