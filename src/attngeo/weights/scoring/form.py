"""`Form`: the bilinear form M = W_q W_kᵀ of a head, kept as its two factors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attngeo.arguments import finite_number
from attngeo.arrays import AnyFloats, ArrayInput, Floats, to_numpy
from attngeo.errors import InputError
from attngeo.io.threads import shared_cores
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.directionality import GAMMA, directionality
from attngeo.weights.scoring.effective_rank import effective_ranks, effective_ranks_of_dense
from attngeo.weights.scoring.factored import Figures, FormScores, score_forms
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.rotary import RotaryAverage, factors_at, rotary_average, symmetry_at


@dataclass(frozen=True, eq=False)
class Form:
    """The bilinear form M = W_q W_kᵀ, so that attention logits are x M xᵀ.

    Rows of M belong to the query side, columns to the key side.

    >>> import numpy as np
    >>> w = np.random.default_rng(0).normal(size=(64, 8))
    >>> round(Form(query=w, key=w).symmetry(), 6)
    1.0
    """

    query: AnyFloats  # [d_q, r]
    key: AnyFloats  # [d_k, r]
    rotary: RotaryPairs | None = None  # rotary position embedding; None: queries and keys are not rotated

    def __init__(self, query: ArrayInput, key: ArrayInput, rotary: RotaryPairs | None = None) -> None:
        for name, factor in (("query", query), ("key", key)):
            object.__setattr__(self, name, _checked_factor(name, factor))
        object.__setattr__(self, "rotary", rotary)
        if self.query.shape[1] != self.key.shape[1]:
            raise InputError(
                f"Form: query has shape {list(self.query.shape)} and key has shape {list(self.key.shape)}; "
                "expected [d_q, r] and [d_k, r] with the same r"
            )
        if rotary is not None:
            rotary.fixed(self.query.shape[1])  # raises where a pair lies outside the head

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Form)
            and np.array_equal(self.query, other.query)
            and np.array_equal(self.key, other.key)
            and self.rotary == other.rotary
        )

    def __repr__(self) -> str:
        (d_query, r), d_key = self.query.shape, self.key.shape[0]
        return f"Form(query=[{d_query}, {r}], key=[{d_key}, {r}])"

    def symmetry(self, offset: float | None = None) -> float:
        """Return s = tr(M M)/‖M‖² ∈ [−1, 1].

        1: symmetric, −1: skew-symmetric, about 1/d for random factors, NaN where M = 0.

        With an offset Δ = key position − query position, return s(Δ) = 2⟨M_Δ, M_{−Δ}ᵀ⟩/(‖M_Δ‖² + ‖M_{−Δ}‖²), which
        compares a pair of tokens with the same pair exchanged together with its positions. It differs from the plain
        score of the matrix M_Δ, `at(offset).symmetry()`, and is the plain score at Δ = 0, unless an attention factor
        multiplies a part of the head.
        """
        self._check_square("symmetry")
        if offset is None:
            return self._scores().symmetry
        query, key = self._relative_factors()
        offsets = np.array([finite_number(offset, "offset")])
        return float(symmetry_at(query, key, self._rotary("symmetry at an offset"), offsets)[0])

    def rope_symmetry(self) -> float:
        """Return s̄, the symmetry under rotary position embedding over all offsets: s(Δ) in the limit of many offsets.

        Numerator and denominator of s(Δ) are averaged separately. 1 where W_q equals W_k up to a positive factor per
        rotary pair.

        >>> import numpy as np
        >>> query, key = np.random.default_rng(0).normal(size=(2, 64, 8))
        >>> form = Form(query, key, RotaryPairs.halves([1.0, 0.3, 0.1, 0.03]))
        >>> abs(form.rope_symmetry()) < 0.05
        True
        """
        self._check_square("rope_symmetry")
        return float(self._rotary_average("rope_symmetry").symmetry)

    def rope_directionality(self, gamma: float = GAMMA) -> float:
        """Return the directionality of the row and column norms of M_Δ, root mean squares over all offsets.

        It is NaN where M = 0.
        """
        average = self._rotary_average("rope_directionality")
        if not average.rows.any():
            return math.nan
        return float(directionality(average.rows, average.columns, finite_number(gamma, "gamma")))

    def at(self, offset: float) -> Form:
        """Return M_Δ = W_q R_Δ W_kᵀ for an offset Δ = key position − query position, as a form without rotation."""
        return Form(*factors_at(*self._double_factors(), self._rotary("at"), finite_number(offset, "offset")))

    def directionality(self, gamma: float = GAMMA) -> float:
        """Return d = (R − C)/(R + C) ∈ [−1, 1], with R and C the excess of row and column norms over mean + γ·std.

        Negative where columns (the context side) dominate, 0 where no norm exceeds its threshold, NaN where M = 0.
        """
        return self._scores(finite_number(gamma, "gamma")).directionality

    def dominance(self) -> float:
        """Return log(CV of row norms / CV of column norms), with CV = std/mean.

        Negative where column norms (the context side) are more unequal than row norms, NaN where all row norms or all
        column norms are equal.

        >>> import numpy as np
        >>> query, key = np.random.default_rng(0).normal(size=(2, 64, 8))
        >>> key[5] *= 9  # one column of M outweighs the others
        >>> Form(query, key).dominance() < -0.5
        True
        """
        return self._scores().dominance

    def self_attending(self) -> float:
        """Return τ = tr M/(√rank ‖M‖) ∈ [−1, 1], rank = min(d, r).

        Positive where tokens attend to tokens like themselves, about 0 for random factors, NaN where M = 0.

        >>> import numpy as np
        >>> form = Form(np.eye(4), np.eye(4))
        >>> form.self_attending(), form.effective_ranks()
        (1.0, (4.0, nan))
        """
        self._check_square("self_attending")
        return self._scores().self_attending

    def effective_ranks(self) -> tuple[float, float]:
        """Return the effective ranks (Σ|λ|²)²/Σ|λ|⁴ of the symmetric and of the skew part.

        A part that is zero, or below about 5e-4 of the norm of M and thus lost to rounding, has none: NaN.
        """
        self._check_square("effective_ranks")
        query, key = self._relative_factors()
        if query.shape[1] >= len(query):
            ranks = effective_ranks_of_dense(query @ key.T)
        else:
            ranks = effective_ranks(key.T @ query, query.T @ query, key.T @ key)
        return float(ranks.symmetric), float(ranks.skew)

    def row_norms(self) -> Floats:
        """Return ρ_i = ‖M_i·‖, `[d_q]`."""
        return self._scores().row_norms

    def column_norms(self) -> Floats:
        """Return κ_j = ‖M_·j‖, `[d_k]`."""
        return self._scores().column_norms

    def norm(self) -> float:
        """Return the Frobenius norm ‖M‖."""
        return self._scores().norm

    def eigenvalues(self) -> NDArray[np.complex128]:
        """Return the min(r, d) eigenvalues of M that can differ from 0, `[min(r, d)]`, largest modulus first.

        The eigenvalues of M = W_q W_kᵀ other than 0 are those of the r×r matrix W_kᵀ W_q.
        """
        self._check_square("eigenvalues")
        query, key = self._double_factors()
        d, r = query.shape
        values = np.linalg.eigvals(key.T @ query if r <= d else query @ key.T).astype(np.complex128)
        return values[np.argsort(-np.abs(values), kind="stable")]

    def dense(self) -> AnyFloats:
        """Return M itself, `[d_q, d_k]`."""
        return self.query @ self.key.T

    def _rotary(self, what: str) -> RotaryPairs:
        if self.rotary is None:
            raise InputError(f"Form: {what} needs rotary pairs, and this form has none: Form(query, key, rotary)")
        return self.rotary

    def _double_factors(self) -> tuple[Floats, Floats]:
        return self.query.astype(np.float64), self.key.astype(np.float64)

    def _relative_factors(self) -> tuple[Floats, Floats]:
        """Return both factors divided by their largest entry, so that no power of them overflows or underflows."""
        query, key = (w / (np.abs(w).max() or 1.0) for w in self._double_factors())
        return query, key

    def _rotary_average(self, what: str) -> RotaryAverage[AnyFloats]:
        query, key = self._relative_factors()
        return rotary_average(query[None], key[None], self._rotary(what))

    @cached_property
    def _factors(self) -> tuple[Factors, Factors]:
        query, key = (Factors(np.ascontiguousarray(w.T)[None]) for w in (self.query, self.key))  # [1, r, d]
        return query, key

    def _scores(self, gamma: float = GAMMA) -> FormScores:
        with shared_cores():
            return next(score_forms(*self._factors, Figures(gamma)))

    def _check_square(self, name: str) -> None:
        if self.query.shape[0] != self.key.shape[0]:
            raise InputError(
                f"Form.{name}: the query has width {self.query.shape[0]} and the key has width {self.key.shape[0]}; "
                "both sides must have the same width"
            )


def _checked_factor(name: str, factor: ArrayInput) -> AnyFloats:
    """Return a factor as a finite float32 or float64 matrix, or raise InputError."""
    try:
        array = np.asarray(to_numpy(factor))
    except ValueError:  # rows of different lengths
        raise InputError(f"Form: {name} is no matrix [d, r], its rows have different lengths") from None
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"Form: {name} has shape {list(array.shape)}, expected a non-empty matrix [d, r]")
    if np.iscomplexobj(array):
        raise InputError(f"Form: {name} has dtype {array.dtype}, expected real numbers")
    if array.dtype not in (np.float32, np.float64):
        narrow = array.dtype.itemsize <= 2 and array.dtype.kind not in "iub"  # float16 and bfloat16 fit in float32
        array = array.astype(np.float32 if narrow else np.float64)
    if not np.isfinite(array).all():
        raise InputError(f"Form: {name} contains NaN or Inf, expected finite numbers")
    return array
