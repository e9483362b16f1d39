"""The bilinear form of a head, kept as its two factors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attngeo.io.threads import shared_cores
from attngeo.weights.scoring.factored import GAMMA, Factors, Scores, pair
from attngeo.weights.scoring.products import Doubles, Floats


@dataclass(frozen=True, eq=False)
class Form:
    """M = W_q W_kᵀ, so that logits are x M xᵀ: rows belong to the query side, columns to the key side.

    >>> import numpy as np
    >>> w = np.random.default_rng(0).normal(size=(64, 8))
    >>> round(Form(query=w, key=w).symmetry(), 6)
    1.0
    """

    query: Floats  # [d_q, r]
    key: Floats  # [d_k, r]

    def __init__(self, query: ArrayLike, key: ArrayLike) -> None:
        for name, factor in (("query", query), ("key", key)):
            object.__setattr__(self, name, checked(name, factor))
        if self.query.shape[1] != self.key.shape[1]:
            raise ValueError(
                f"Form: query {list(self.query.shape)} and key {list(self.key.shape)} must be [d_q, r] and [d_k, r] "
                "with one r"
            )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Form) and np.array_equal(self.query, other.query) and np.array_equal(self.key, other.key)
        )

    def __repr__(self) -> str:
        (d_query, r), d_key = self.query.shape, self.key.shape[0]
        return f"Form(query=[{d_query}, {r}], key=[{d_key}, {r}])"

    def symmetry(self) -> float:
        """s = tr(MM)/‖M‖² ∈ [−1, 1]: 1 symmetric, −1 skew, about 1/d for random factors; NaN where M = 0."""
        self._must_be_square("symmetry")
        return self._scores().symmetry

    def directionality(self, gamma: float = GAMMA) -> float:
        """d = (R − C)/(R + C) ∈ [−1, 1], R and C the excess of row and column norms over mean + γ·std.

        Negative: columns (the context side) dominate. 0 where no norm stands out; NaN where M = 0.
        """
        return self._scores(gamma).directionality

    def row_norms(self) -> Doubles:
        """ρ_i = ‖M_i·‖, `[d_q]`."""
        return self._scores().rows

    def column_norms(self) -> Doubles:
        """κ_j = ‖M_·j‖, `[d_k]`."""
        return self._scores().columns

    def norm(self) -> float:
        """Frobenius norm ‖M‖."""
        return self._scores().norm

    def eigenvalues(self) -> NDArray[np.complex128]:
        """The min(r, d) eigenvalues of M that can differ from 0, largest modulus first.

        Those of M = W_q W_kᵀ other than 0 are those of the r×r matrix W_kᵀ W_q.
        """
        self._must_be_square("eigenvalues")
        query, key = self.query.astype(np.float64), self.key.astype(np.float64)
        d, r = query.shape
        values = np.linalg.eigvals(key.T @ query if r <= d else query @ key.T).astype(np.complex128)
        return values[np.argsort(-np.abs(values), kind="stable")]

    def dense(self) -> Floats:
        """M itself, `[d_q, d_k]`."""
        return self.query @ self.key.T

    @cached_property
    def _factors(self) -> tuple[Factors, Factors]:
        query, key = (Factors(np.ascontiguousarray(w.T)[None]) for w in (self.query, self.key))  # [1, r, d]
        return query, key

    def _scores(self, gamma: float = GAMMA) -> Scores:
        with shared_cores():
            return next(pair(*self._factors, gamma=gamma))

    def _must_be_square(self, name: str) -> None:
        if self.query.shape[0] != self.key.shape[0]:
            raise ValueError(
                f"Form.{name}: queries of width {self.query.shape[0]} and keys of width {self.key.shape[0]} "
                "share no space; both sides must have one width"
            )


def checked(name: str, factor: ArrayLike) -> NDArray[Any]:
    """A finite float32 or float64 matrix, or ValueError."""
    array = np.asarray(factor)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"Form: {name} must be a matrix [d, r], not of shape {list(array.shape)}")
    if np.iscomplexobj(array):
        raise ValueError(f"Form: {name} must be real, not {array.dtype}")
    if array.dtype not in (np.float32, np.float64):
        narrow = array.dtype.itemsize <= 2 and array.dtype.kind not in "iub"  # float16 and bfloat16 fit in float32
        array = array.astype(np.float32 if narrow else np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"Form: {name} must be finite, it has NaN or Inf")
    return array
