"""Symmetry and norms of forms under rotary position embedding (RoPE), averaged over all offsets; what each pair does.

Queries and keys are rotated by their positions, so the form depends on the offset Δ = key position − query position:

    M_Δ  = W_q R_Δ W_kᵀ                                           R_Δ rotates pair f by Δ·θ_f
    s(Δ) = 2⟨M_Δ, M_{−Δ}ᵀ⟩ / (‖M_Δ‖² + ‖M_{−Δ}‖²)  ∈ [−1, 1]        1: swapping two tokens and their positions
                                                                   changes nothing
    s̄    = the same, numerator and denominator each averaged over all offsets

The average has a closed form: the plain scores, with each product of factors Z replaced by P(Z), its average under
conjugation by R_Δ. Between different pairs, and between rotated and unrotated dimensions, P(Z) is zero. Within a pair
it keeps the part that commutes with rotations,

    P(Z)_ff = α I + β J,    α = (Z_11 + Z_22)/2,    β = (Z_21 − Z_12)/2,    J = [[0, −1], [1, 0]]

and on unrotated dimensions it keeps everything. So only products within a pair are needed. The limit holds for
different, non-zero frequencies.

With α and β of X = W_qᵀ W_k, a pair of a head adds 2√(α² + β²) cos(Δθ − φ) to tr M_Δ, with the phase φ = atan2(β, α).
So its preferred offset is φ/θ: negative where the key is before the query. Its energy is its share of the mean of
‖M_Δ‖² over all offsets.

The averages accept NumPy arrays or torch tensors with any number of leading batch axes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from attngeo.arrays import Array, Floats, Ints, is_torch, namespace
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.formulas import bounded_ratio, double_sum, gram_matrix, inner, row_norms

if TYPE_CHECKING:
    import polars as pl

FAST = 32  # tokens within which a fast pair turns once
SLOW = 4096  # tokens within which a slow pair does not turn once

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


@dataclass(frozen=True, eq=False)
class RotaryAverage(Generic[Array]):
    """Averages over all offsets: s̄, and the root mean square of each row norm and column norm."""

    symmetry: Array  # [...], NaN where the widths differ
    rows: Array  # [..., d_q]
    columns: Array  # [..., d_k]
    cancellation: Array  # [...], Σ ‖q_a‖²‖k_a‖² over dimensions divided by the mean of ‖M_Δ‖², which is their sum
    alpha: Array  # [..., n], of each rotating pair of a head; NaN where the widths differ
    beta: Array  # [..., n]
    energy: Array  # [..., n], tr A_ff tr B_ff with A = W_qᵀ W_q, B = W_kᵀ W_k


def rotary_average(query: Array, key: Array, rotary: RotaryPairs, groups: int = 1) -> RotaryAverage[Array]:
    """Return s̄ and the mean norms of each form of a batch.

    query: [..., d_q, G·r], for a layer form the queries of each key head, summed over those that share it
    key:   [..., d_k, G·r]
    groups: G, 1 for heads

    >>> w = np.random.default_rng(0).normal(size=(64, 8))
    >>> rotary = RotaryPairs.halves([1.0, 0.3, 0.1, 0.03])
    >>> float(rotary_average(w, w, rotary).symmetry.round(6))
    1.0
    """
    size, square = query.shape[-1] // groups, query.shape[-2] == key.shape[-2]
    pairs = _side_by_side(rotary.turning, groups, size)  # [n, 2G]
    of_query, of_key = (w.mT[..., pairs, :] for w in (query, key))  # [..., n, 2G, d]
    gram_query, gram_key = (_commuting_part(side @ side.mT) for side in (of_query, of_key))  # [..., n, 2G, 2G]
    cross = _commuting_part(of_key @ of_query.mT) if square else None
    scale = rotary.factor**4
    norm = scale * inner(gram_query, gram_key).sum(-1)
    trace = norm * np.nan if cross is None else scale * inner(cross, cross.mT).sum(-1)
    energy = scale * double_sum(_diagonal(gram_query) * _diagonal(gram_key), (-1, -2))
    rows = scale * double_sum((gram_key @ of_query) * of_query, (-3, -2))
    columns = scale * double_sum((gram_query @ of_key) * of_key, (-3, -2))
    alpha, beta, of_pairs = _pair_terms(gram_query, gram_key, cross, groups, rotary.factor)
    if len(still := rotary.fixed(size)):  # a form of its own, whose products are not averaged
        fixed = _side_by_side(still[:, None], groups, size).ravel()  # [G·u]
        factor = np.repeat(rotary.scale(size)[still], groups)
        factor = query.new_tensor(factor) if is_torch(query) else factor.astype(query.dtype)
        w_query, w_key = (w[..., fixed] * factor for w in (query, key))  # [..., d, G·u]
        gram_query, gram_key = gram_matrix(w_query), gram_matrix(w_key)
        norm = norm + inner(gram_query, gram_key)
        if square:
            cross = w_key.mT @ w_query
            trace = trace + inner(cross, cross.mT)
        energy = energy + double_sum(_diagonal(gram_query) * _diagonal(gram_key), -1)
        rows, columns = rows + row_norms(w_query, gram_key) ** 2, columns + row_norms(w_key, gram_query) ** 2
    xp = namespace(norm)
    rows, columns = xp.sqrt(rows.clip(0.0)), xp.sqrt(columns.clip(0.0))
    return RotaryAverage(bounded_ratio(trace, norm), rows, columns, energy / norm.clip(1e-300), alpha, beta, of_pairs)


def _side_by_side(dimensions: Ints, groups: int, size: int) -> Ints:
    """Return where dimensions `[n, k]` of a head stand among those of all G key heads, `[n, k·G]`."""
    places = dimensions[:, :, None] + size * np.arange(groups)  # [n, k, G]
    return places.reshape(len(dimensions), dimensions.shape[1] * groups)


def _commuting_part(product: Any) -> Any:
    """Return P(Z) = [[α, −β], [β, α]] of products `[..., 2G, 2G]` = [[Z_11, Z_12], [Z_21, Z_22]] of rotary pairs."""
    xp = namespace(product)
    half = product.shape[-1] // 2
    alpha = (product[..., :half, :half] + product[..., half:, half:]) / 2  # [..., G, G]
    beta = (product[..., half:, :half] - product[..., :half, half:]) / 2
    upper, lower = xp.concatenate([alpha, -beta], -1), xp.concatenate([beta, alpha], -1)  # [..., G, 2G]
    return xp.concatenate([upper, lower], -2)


def _pair_terms(gram_query: Any, gram_key: Any, cross: Any, groups: int, factor: float) -> tuple[Any, Any, Any]:
    """Return α, β and the energy of each pair of heads, `[..., n]`; NaN for layer forms and two widths."""
    unknown = gram_query[..., 0, 0] * np.nan
    if cross is None or groups > 1:
        return unknown, unknown, unknown
    alpha, beta = factor**2 * cross[..., 0, 0], factor**2 * cross[..., 0, 1]  # of W_kᵀ W_q = Xᵀ
    return alpha, beta, 4 * factor**4 * gram_query[..., 0, 0] * gram_key[..., 0, 0]


def _diagonal(matrix: Any) -> Any:
    return matrix.diagonal(0, -2, -1)


def frequency_rows(keys: dict[str, Any], alpha: Floats, beta: Floats, energy: Floats, rotary: RotaryPairs) -> list[Any]:
    """Return one row of FREQUENCY_COLUMNS per rotating pair of a head; `keys` are the columns that name the head.

    alpha, beta, energy: [n], from `rotary_average`
    """
    total = float(energy.sum())
    phases = np.arctan2(beta, alpha)  # [n]
    frequencies = rotary.turning_frequencies
    return [
        keys
        | {
            "pair": pair,
            "frequency": float(frequencies[pair]),
            "energy": float(energy[pair]) / total if total > 0 else None,
            "alpha": float(alpha[pair]),
            "beta": float(beta[pair]),
            "phase": float(phases[pair]) if total > 0 else None,
            "preferred_offset": float(phases[pair] / frequencies[pair]) if total > 0 else None,
        }
        for pair in range(len(frequencies))
    ]


def frequency_summary(frequencies: pl.DataFrame) -> pl.DataFrame:
    """Return one row per layer of `ScoreTable.frequencies`: its energy by speed, and its strongest pair.

    fast, medium, slow   mean over heads of the share of energy in pairs that turn once within FAST tokens, that need
                         more than SLOW tokens for a turn (slow), and in all others (medium)
    head, pair           the pair with the largest share of its head's energy among all heads
    share                this share
    turn                 the tokens that a turn of this pair takes, 2π/θ
    offset               the offset of the key that this pair prefers; negative: the key is before the query

    >>> import polars as pl
    >>> pairs = {"pair": [0, 1], "frequency": [1.0, 0.001], "energy": [0.25, 0.75], "preferred_offset": [-2.0, 90.0]}
    >>> table = pl.DataFrame({"model": "m", "stack": "decoder", "layer": 0, "head": 0, **pairs})
    >>> frequency_summary(table).select("fast", "medium", "slow", "pair", "offset").row(0)
    (0.25, 0.0, 0.75, 1, 90.0)
    """
    import polars as pl

    turn = 2 * math.pi / pl.col("frequency")
    speeds = {"fast": turn <= FAST, "medium": (turn > FAST) & (turn <= SLOW), "slow": turn > SLOW}
    heads = pl.col("head").n_unique()
    shares = [(pl.col("energy").filter(chosen).sum() / heads).alias(name) for name, chosen in speeds.items()]
    names = {"head": "head", "pair": "pair", "energy": "share", "turn": "turn", "preferred_offset": "offset"}
    strongest = [pl.col(name).get(pl.col("energy").arg_max()).alias(new) for name, new in names.items()]
    rows = frequencies.drop_nulls("energy").with_columns(turn=turn)
    return rows.group_by("model", "stack", "layer", maintain_order=True).agg(*shares, *strongest)
