"""Products of many factors at once, as torch tensors in float64.

A GPU carries out such a product several times as fast where both operands are read as they lie in memory, so no operand
is copied for the sake of a broadcast or a transpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 256  # rows of a Gram matrix multiplied at once


@dataclass(frozen=True, eq=False)
class Side:
    """The queries or the keys of B groups of forms; all forms of a group have the same key."""

    w: Tensor  # [B, m, r, d], m = 1 for keys

    @cached_property
    def gram(self) -> Tensor:
        """The Gram matrices W Wᵀ, `[B, m, r, r]`, computed once."""
        return self.w @ self.w.mT

    def __getitem__(self, groups: slice | Tensor) -> Side:
        """Return some of the B groups, with their Gram matrices; positions are given as a tensor on the device."""
        return _side(self.w[groups], self.gram[groups])

    def after(self, first: Side) -> Side:
        """Return the groups of `first`, followed by all of these but as many at the end."""
        import torch

        pairs = ((first.w, self.w), (first.gram, self.gram))
        return _side(*(torch.cat([before, own[: -len(before)]]) for before, own in pairs))

    def copy(self) -> Side:
        """Return a copy, so that the memory of other groups can be freed."""
        return _side(self.w.clone(), self.gram.clone())


def _side(w: Tensor, gram: Tensor) -> Side:
    """Return factors with Gram matrices that are known."""
    side = Side(w)
    side.__dict__["gram"] = gram
    return side


def cross_products(query: Tensor, key: Tensor) -> Tensor:
    """Return W_qᵀ W_k, `[B, m, r, r]`, of factors `[B, m, r, d]` and `[B, 1, r, d]`."""
    return (query.flatten(1, 2) @ key[:, 0].mT).unflatten(1, query.shape[1:3])


def quadratic_forms(gram: Tensor, w: Tensor) -> Tensor:
    """Return w_jᵀ G w_j for each column w_j, `[B, m, d]`; one that rounding moved below 0 is 0.

    gram: [B, m, r, r] or [B, 1, r, r]
    w:    [B, m, r, d] or [B, 1, r, d]

    G is symmetric, so only its blocks on and right of the diagonal are multiplied, and those right of it count twice.
    """
    r = gram.shape[-1]
    parts = []
    for i in range(0, r, BLOCK):
        upper = gram[..., i : i + BLOCK, i:]  # [B, m, b, r - i]
        if i + BLOCK < r:
            upper = upper.clone()
            upper[..., BLOCK:] *= 2
        parts.append(_multiplied(upper, w[..., i:, :]).mul_(w[..., i : i + BLOCK, :]).sum(-2))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.clamp_min(0)


def _multiplied(gram: Tensor, w: Tensor) -> Tensor:
    """Return G W, `[B, m, b, d]`, from Gram matrices `[B, m, b, k]` and factors `[B, m, k, d]`, either with m = 1."""
    if w.shape[1] == 1:  # as one product, because a broadcast would copy the factors
        return (gram.flatten(1, 2) @ w[:, 0]).unflatten(1, gram.shape[1:3])
    return gram @ w
