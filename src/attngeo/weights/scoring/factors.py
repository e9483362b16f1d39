"""Factors of bilinear forms, with the Gram matrices that several scores share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attngeo.arrays import AnyFloats
from attngeo.io.threads import each
from attngeo.weights.scoring.products import BLOCK, symmetric_product

SMALL = 2**24  # number of multiply-adds (d r²) up to which everything is computed in float64


@dataclass(frozen=True, eq=False)
class Factors:
    """One side, queries or keys, of n forms of one shape.

    Factors are stored transposed, [r, d], as checkpoints store them.
    """

    w: AnyFloats  # [n, r, d]
    summands: AnyFloats | None = None  # [m, ...], only if n = 1: their sum, rounded, is w; see `double`
    _gram: AnyFloats | None = None  # [n, r, r], once computed

    @property
    def gram(self) -> AnyFloats:
        """The Gram matrices W Wᵀ, `[n, r, r]`, computed once."""
        # Not a cached_property: in Python 3.11 all instances share its lock, and threads would wait for each other.
        if self._gram is None:
            object.__setattr__(self, "_gram", self._products())
        assert self._gram is not None
        return self._gram

    def _products(self) -> AnyFloats:
        n, r, d = self.w.shape
        if n == 1 and r > BLOCK:
            return symmetric_product(self.w[0])[None]
        return np.stack(each(lambda w: w @ w.T, self.w, d * r * r))  # NumPy computes w @ w.T by syrk, at half the cost

    def __getitem__(self, part: slice) -> Factors:
        """Return some of the n factors, sharing weights and Gram matrices."""
        return Factors(self.w[part], self.summands, None if self._gram is None else self._gram[part])

    def without_summands(self) -> Factors:
        """Return the same factors, sharing weights and Gram matrices but no longer holding the summands in memory."""
        return Factors(self.w, None, self._gram)

    def energy(self) -> float:
        """Return Σ W² over all n factors."""
        if self._gram is not None:
            return float(np.einsum("naa->", self._gram, dtype=np.float64))
        return sum(each(lambda w: float(np.vdot(w, w)), self.w, self.w.size))

    @property
    def small(self) -> bool:
        """Whether the factors are so small that float32 would save no time worth having."""
        _, r, d = self.w.shape
        return bool(d * r * r <= SMALL)

    def double(self) -> Factors:
        """Return the factors in float64.

        A sum is added up again, from its summands: its float32 rounding may be the largest error of the scores.
        """
        if self.w.dtype == np.float64:
            return self
        if self.summands is not None:
            return Factors(self.summands.sum(0, dtype=np.float64).reshape(self.w.shape))
        return Factors(self.w.astype(np.float64))
