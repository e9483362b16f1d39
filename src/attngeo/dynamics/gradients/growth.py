"""How fast the symmetric and the skew part of a form grow in a step of gradient descent, by kind of token pair.

With U = c Σ_ij β_ij x_i x_jᵀ a step of size η changes M = W_q W_kᵀ by δM = η(U W_k W_kᵀ + W_q W_qᵀ U), so that

    d‖M_±‖²/dη = 2⟨M_±, δM/η⟩ = 2c Σ_ij β_ij T_ij,    T_ij = (W_kᵀM_±ᵀx_i)·(W_kᵀx_j) + (W_qᵀx_i)·(W_qᵀM_±x_j)

with M_± = (M ± Mᵀ)/2. The sum splits by pairs: a token with itself (i = j), two positions that hold the same token, and
all others. Only products of size N×N and d×r are formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attngeo.arrays import AnyFloats, Floats
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


def growth_sums(head: HeadTerms, kinds: AnyFloats) -> Floats | None:
    """Return d‖M_±‖²/dη by sign and kind of pair, `[2, 3]`; None where the weights do not move by U alone.

    Rotation, QK-norm and keys that several heads share add other terms to the gradient of the weights.
    """
    if head.weights is None:
        return None
    query, key = (w.astype(np.float64) for w in (head.weights.query, head.weights.key))  # [d, r]
    if not _moves_by_update(head):
        return None
    x, beta = head.x.astype(np.float64), head.beta.astype(np.float64)  # [S, N, d], [S, N, N]
    gram_query, gram_key, cross = query.T @ query, key.T @ key, query.T @ key  # [r, r]
    on_query, on_key = x @ query, x @ key  # [S, N, r]
    sums = np.empty((2, 3))
    for number, sign in enumerate((1, -1)):
        left = (on_query @ gram_key + sign * on_key @ cross) / 2  # [S, N, r], W_kᵀ M_±ᵀ x_i
        right = (on_key @ gram_query + sign * on_query @ cross.T) / 2  # [S, N, r], W_qᵀ M_± x_j
        t = left @ on_key.swapaxes(1, 2) + on_query @ right.swapaxes(1, 2)  # [S, N, N]
        sums[number] = 2 * head.scale * np.bincount(kinds.ravel(), (beta * t).ravel(), minlength=3)
    return sums


def _moves_by_update(head: HeadTerms) -> bool:
    """Return whether ∂L/∂W_q = G W_k and ∂L/∂W_k = Gᵀ W_q."""
    assert head.weights is not None
    width = head.x.shape[-1]
    x = head.x.reshape(-1, width)  # [S·N, d]
    w = head.weights
    to_query = -head.scale * x.T @ (head.beta @ (head.x @ w.key)).reshape(len(x), -1)  # [d, r]
    to_key = -head.scale * x.T @ (head.beta.swapaxes(1, 2) @ (head.x @ w.query)).reshape(len(x), -1)  # [d, r]
    return all(
        np.linalg.norm(from_update - own) <= _TOLERANCE * np.linalg.norm(own)
        for from_update, own in ((to_query, w.query_gradient), (to_key, w.key_gradient))
    )
