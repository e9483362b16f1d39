"""How fast the symmetric and the skew part of a form grow in a step of gradient descent, by kind of token pair.

A step of size η changes M = W_q W_kᵀ by δM = η c Σ_ij β_ij (x_i k̂_jᵀ W_kᵀ + W_q q̂_i x_jᵀ), with q̂ and k̂ the queries
and keys, biases included, so that

    d‖M_±‖²/dη = 2⟨M_±, δM/η⟩ = 2c Σ_ij β_ij T_ij,    T_ij = (W_kᵀM_±ᵀx_i)·k̂_j + q̂_i·(W_qᵀM_±x_j)

with M_± = (M ± Mᵀ)/2. The sum splits by pairs: a token with itself (i = j), two positions that hold the same token, and
all others. Only products of size N×N and d×r are formed. `growth_sums` accepts NumPy arrays or torch tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attngeo.arrays import AnyFloats, Array, namespace
from attngeo.training.gradients.head_terms import HeadTerms

_TOLERANCE = 1e-2  # relative difference of the weight gradient from that of the terms that float32 sums may have


@dataclass(frozen=True)
class Growth:
    """d‖M_s‖²/dη or d‖M_a‖²/dη, relative to ‖M‖², by kind of token pair."""

    position: float  # i = j
    token: float  # i ≠ j, the same token id
    rest: float

    @property
    def total(self) -> float:
        return self.position + self.token + self.rest


def pair_kinds(ids: AnyFloats) -> AnyFloats:
    """Return the kind of each pair of positions, `[S, N, N]`: 0 for i = j, 1 for the same token id, 2 for the rest.

    ids: [S, N]
    """
    same_token = ids[:, :, None] == ids[:, None, :]  # [S, N, N]
    kinds: AnyFloats = np.where(np.eye(ids.shape[1], dtype=bool), 0, np.where(same_token, 1, 2))
    return kinds


def growth_sums(
    x: Array, beta: Array, weights: tuple[Array, Array], vectors: tuple[Array, Array], scale: float, kinds: Array
) -> Array:
    """Return d‖M_±‖²/dη of each head by sign and kind of pair, `[h, 2, 3]`, for weights that move by the terms alone.

    x:       [S, N, d], token vectors
    beta:    [S, h, N, N]
    weights: of queries and keys, [h, d, r] each
    vectors: queries and keys, [S, h, N, r] each
    kinds:   [S, N, N], see `pair_kinds`
    """
    query, key = weights
    of_query, of_key = vectors
    xp = namespace(x)
    query_t, key_t = query.swapaxes(-1, -2), key.swapaxes(-1, -2)
    gram_query, gram_key, cross = query_t @ query, key_t @ key, query_t @ key  # [h, r, r]
    on_query, on_key = x[:, None] @ query, x[:, None] @ key  # [S, h, N, r]
    sums = []
    for sign in (1, -1):
        left = (on_query @ gram_key + sign * on_key @ cross) / 2  # [S, h, N, r], W_kᵀ M_±ᵀ x_i
        right = (on_key @ gram_query + sign * on_query @ cross.swapaxes(-1, -2)) / 2  # [S, h, N, r], W_qᵀ M_± x_j
        t = left @ of_key.swapaxes(-1, -2) + of_query @ right.swapaxes(-1, -2)  # [S, h, N, N]
        grown = 2 * scale * beta * t
        sums.append(xp.stack([(grown * (kinds == kind)[:, None]).sum((0, 2, 3)) for kind in range(3)], -1))  # [h, 3]
    total: Array = xp.stack(sums, -2)
    return total


def moves_by_terms(head: HeadTerms) -> bool:
    """Return whether M moves by its terms alone: ∂L/∂W_q = −c Xᵀβk̂ and ∂L/∂W_k = −c Xᵀβᵀq̂.

    Rotation, QK-norm and keys that several heads share add other terms to the gradient of the weights.
    """
    if head.weights is None:
        return False
    x = head.x.reshape(-1, head.x.shape[-1])  # [S·N, d]
    w = head.weights
    to_query = -head.scale * x.T @ (head.beta @ head.key).reshape(len(x), -1)  # [d, r]
    to_key = -head.scale * x.T @ (head.beta.swapaxes(1, 2) @ head.query).reshape(len(x), -1)  # [d, r]
    return all(
        np.linalg.norm(from_terms - own) <= _TOLERANCE * np.linalg.norm(own)
        for from_terms, own in ((to_query, w.query_gradient), (to_key, w.key_gradient))
    )
