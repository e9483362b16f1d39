"""How fast the symmetric and the skew part of a form grow in a step of gradient descent, by kind of token pair.

With U = c Σ_ij β_ij x_i x_jᵀ a step of size η changes M = W_q W_kᵀ by δM = η(U W_k W_kᵀ + W_q W_qᵀ U), so that

    d‖M_±‖²/dη = 2⟨M_±, δM/η⟩ = 2c Σ_ij β_ij T_ij,    T_ij = (W_kᵀM_±ᵀx_i)·(W_kᵀx_j) + (W_qᵀx_i)·(W_qᵀM_±x_j)

with M_± = (M ± Mᵀ)/2. The sum splits by pairs: a token with itself (i = j), two positions that hold the same token, and
all others. Only products of size N×N and d×r are formed. `growth_sums` accepts NumPy arrays or torch tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attngeo.arrays import AnyFloats, Array, namespace
from attngeo.dynamics.gradients.head_terms import HeadTerms

_TOLERANCE = 1e-2  # relative difference of the weight gradient from G W_k that float32 sums may have


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


def growth_sums(x: Array, beta: Array, query: Array, key: Array, scale: float, kinds: Array) -> Array:
    """Return d‖M_±‖²/dη of each head by sign and kind of pair, `[h, 2, 3]`, for weights that move by the update alone.

    x:          [S, N, d], token vectors
    beta:       [S, h, N, N]
    query, key: [h, d, r], the weights of the heads
    kinds:      [S, N, N], see `pair_kinds`
    """
    xp = namespace(x)
    query_t, key_t = query.swapaxes(-1, -2), key.swapaxes(-1, -2)
    gram_query, gram_key, cross = query_t @ query, key_t @ key, query_t @ key  # [h, r, r]
    on_query, on_key = x[:, None] @ query, x[:, None] @ key  # [S, h, N, r]
    sums = []
    for sign in (1, -1):
        left = (on_query @ gram_key + sign * on_key @ cross) / 2  # [S, h, N, r], W_kᵀ M_±ᵀ x_i
        right = (on_key @ gram_query + sign * on_query @ cross.swapaxes(-1, -2)) / 2  # [S, h, N, r], W_qᵀ M_± x_j
        t = left @ on_key.swapaxes(-1, -2) + on_query @ right.swapaxes(-1, -2)  # [S, h, N, N]
        grown = 2 * scale * beta * t
        sums.append(xp.stack([(grown * (kinds == kind)[:, None]).sum((0, 2, 3)) for kind in range(3)], -1))  # [h, 3]
    total: Array = xp.stack(sums, -2)
    return total


def moves_by_update(head: HeadTerms) -> bool:
    """Return whether M moves by the update alone: ∂L/∂W_q = G W_k and ∂L/∂W_k = Gᵀ W_q.

    Rotation, QK-norm and keys that several heads share add other terms to the gradient of the weights.
    """
    if head.weights is None:
        return False
    width = head.x.shape[-1]
    x = head.x.reshape(-1, width)  # [S·N, d]
    w = head.weights
    to_query = -head.scale * x.T @ (head.beta @ (head.x @ w.key)).reshape(len(x), -1)  # [d, r]
    to_key = -head.scale * x.T @ (head.beta.swapaxes(1, 2) @ (head.x @ w.query)).reshape(len(x), -1)  # [d, r]
    return all(
        np.linalg.norm(from_update - own) <= _TOLERANCE * np.linalg.norm(own)
        for from_update, own in ((to_query, w.query_gradient), (to_key, w.key_gradient))
    )
