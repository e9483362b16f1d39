"""`Form`: the bilinear form M = W_q W_kᵀ of a head, kept as its two factors.

`extreme_heads` chooses heads of a score table, and `head_forms` reads the norms and spectra of chosen heads of a model.
`part_spectra` gives the spectra of the symmetric and the skew-symmetric part of a form,

    S = (M + Mᵀ)/2 = ½ W [0 I; I 0] Wᵀ       real eigenvalues
    N = (M − Mᵀ)/2 = ½ W [0 I; −I 0] Wᵀ      imaginary eigenvalues, in pairs ±iλ

with W = [W_q W_k], of shape [d, 2r]. The QR factorisation W = U R moves both into the span of W, where they are 2r×2r
matrices with the same eigenvalues apart from zeros. The squares of all eigenvalues add up to ‖M‖²: to (1 + s)/2 of it
in the symmetric part and to (1 − s)/2 of it in the skew part, with s the symmetry of M.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import AnyFloats, ArrayInput, Floats, to_numpy
from attngeo.errors import InputError
from attngeo.io.threads import shared_cores
from attngeo.weights.layout.layers import open_layers
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.engine import Scores, score_precisely
from attngeo.weights.scoring.formulas import GAMMA, directionality, threshold
from attngeo.weights.scoring.offsets import factors_at, symmetry_at
from attngeo.weights.sources.open import CheckpointRef

if TYPE_CHECKING:
    import polars as pl


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
            return float(self._scores.symmetry[0])
        query, key = (w / (np.abs(w).max() or 1.0) for w in self._double_factors())  # no power of them overflows
        offsets = np.array([offset], np.float64)
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
        self._rotary("rope_symmetry")
        return float(self._scores.symmetry_rope[0])

    def rope_directionality(self) -> float:
        """Return the directionality of the row and column norms of M_Δ, root mean squares over all offsets.

        It is NaN where M = 0.
        """
        self._rotary("rope_directionality")
        return float(self._scores.directionality_rope[0])

    def at(self, offset: float) -> Form:
        """Return M_Δ = W_q R_Δ W_kᵀ for an offset Δ = key position − query position, as a form without rotation."""
        return Form(*factors_at(*self._double_factors(), self._rotary("at"), offset))

    def directionality(self, gamma: float = GAMMA) -> float:
        """Return d = (R − C)/(R + C) ∈ [−1, 1], with R and C the excess of row and column norms over mean + γ·std.

        Negative where columns (the context side) dominate, 0 where no norm exceeds its threshold, NaN where M = 0.
        """
        if gamma == GAMMA or math.isnan(self._scores.directionality[0]):
            return float(self._scores.directionality[0])
        return float(directionality(self.row_norms(), self.column_norms(), gamma))

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
        return float(self._scores.dominance[0])

    def self_attending(self) -> float:
        """Return τ = tr M/(√rank ‖M‖) ∈ [−1, 1], rank = min(d, r).

        Positive where tokens attend to tokens like themselves, about 0 for random factors, NaN where M = 0.

        >>> import numpy as np
        >>> form = Form(np.eye(4), np.eye(4))
        >>> form.self_attending(), form.effective_ranks()
        (1.0, (4.0, nan))
        """
        self._check_square("self_attending")
        return float(self._scores.self_attending[0])

    def effective_ranks(self) -> tuple[float, float]:
        """Return the effective ranks (Σ|λ|²)²/Σ|λ|⁴ of the symmetric and of the skew part.

        A part that is zero, or below about 5e-4 of the norm of M and thus lost to rounding, has none: NaN.
        """
        self._check_square("effective_ranks")
        return float(self._scores.rank_symmetric[0]), float(self._scores.rank_skew[0])

    def row_norms(self) -> Floats:
        """Return ρ_i = ‖M_i·‖, `[d_q]`."""
        return np.asarray(self._scores.row_norms[0])

    def column_norms(self) -> Floats:
        """Return κ_j = ‖M_·j‖, `[d_k]`."""
        return np.asarray(self._scores.column_norms[0])

    def norm(self) -> float:
        """Return the Frobenius norm ‖M‖."""
        return float(self._scores.norm[0])

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

    @cached_property
    def _scores(self) -> Scores[AnyFloats]:
        with shared_cores():
            return score_precisely(self.query[None], self.key[None], self.rotary, ranks=True)

    def _check_square(self, name: str) -> None:
        if self.query.shape[0] != self.key.shape[0]:
            raise InputError(
                f"Form.{name}: the query has width {self.query.shape[0]} and the key has width {self.key.shape[0]}; "
                "both sides must have the same width"
            )


def _checked_factor(name: str, factor: ArrayInput) -> AnyFloats:
    """Return a factor as a finite float32 or float64 matrix, or raise InputError."""
    array = np.asarray(to_numpy(factor))
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"Form: {name} has shape {list(array.shape)}, expected a non-empty matrix [d, r]")
    if array.dtype not in (np.float32, np.float64):
        narrow = array.dtype.itemsize <= 2 and array.dtype.kind not in "iub"  # float16 and bfloat16 fit in float32
        array = array.astype(np.float32 if narrow else np.float64)
    if not np.isfinite(array).all():
        raise InputError(f"Form: {name} contains NaN or Inf, expected finite numbers")
    return array


# ---- chosen heads of a model


@dataclass(frozen=True, eq=False)
class HeadForm:
    """The form of one head of self-attention: its scores, the norms of its rows and columns, and its spectra."""

    model: str
    stack: str
    layer: int
    head: int
    symmetry: float
    directionality: float
    norm: float  # ‖M‖
    row_norms: Floats  # [d], of the query side
    column_norms: Floats  # [d], of the key side
    row_threshold: float  # mean + 2·std, above which directionality counts a norm
    column_threshold: float
    symmetric: Floats  # [min(2r, d)], eigenvalues of the symmetric part, largest first
    skew: Floats  # [min(2r, d)], those of the skew part divided by i

    @property
    def label(self) -> str:
        """The head as "L3H7"."""
        return f"L{self.layer}H{self.head}"


def extreme_heads(frame: pl.DataFrame) -> list[tuple[str, int, int]]:
    """Return stack, layer and head of the highest, the median and the lowest symmetry of each stack.

    frame: columns as in `ScoreTable.frame`, of one model; heads of cross-attention and heads that are zero are left out

    >>> extreme_heads(attngeo.score(attngeo.bundled("encoder")).frame)
    [('encoder', 3, 2), ('encoder', 0, 3), ('encoder', 1, 3)]
    """
    import polars as pl

    heads = frame.filter(pl.col("head").is_not_null(), ~pl.col("cross"), pl.col("symmetry").is_not_null())
    chosen: list[tuple[str, int, int]] = []
    for part in heads.partition_by("stack", maintain_order=True):
        ranked = part.sort("symmetry", descending=True).select("stack", "layer", "head").rows()
        chosen += dict.fromkeys([ranked[0], ranked[len(ranked) // 2], ranked[-1]])
    return chosen


def head_forms(
    ref: CheckpointRef,
    heads: Iterable[tuple[str, int, int]],
    *,
    num_heads: int | None = None,
    unproven: bool = False,
    model: str | None = None,
) -> tuple[HeadForm, ...]:
    """Return the forms of chosen heads of `ref`, in the order in which they are given; only their layers are read.

    heads:     stack, layer and head of each
    num_heads, unproven: as in `score`
    model:     the name in the result; by default that of `ref`

    >>> (form,) = head_forms(attngeo.bundled("encoder"), [("encoder", 2, 1)])
    >>> form.label, form.row_norms.shape, form.symmetric.shape
    ('L2H1', (128,), (64,))
    >>> share = np.square(form.symmetric).sum() / form.norm**2  # of the energy in the symmetric part
    >>> bool(np.isclose(share, (1 + form.symmetry) / 2))
    True
    """
    wanted = list(heads)
    layers = {layer for _, layer, _ in wanted}
    stacks = {stack for stack, _, _ in wanted}
    found: dict[tuple[str, int, int], HeadForm] = {}
    if not wanted:
        return ()
    with open_layers(ref, num_heads=num_heads, stack=stacks, layers=layers, unproven=unproven) as source:
        name = source.model if model is None else model
        for weights in source:
            for place, number in enumerate(weights.head_numbers):
                key = (weights.stack, weights.layer, number)
                if key in wanted and not weights.cross:
                    form = Form(weights.query[place], weights.key[place // weights.group_size])
                    found[key] = _head_form(name, key, form)
        missing = [key for key in wanted if key not in found]
        if missing:
            stack, layer, head = missing[0]
            raise InputError(f"{name}: the {stack} has no head L{layer}H{head} of self-attention")
    return tuple(found[key] for key in wanted)


def _head_form(model: str, key: tuple[str, int, int], form: Form) -> HeadForm:
    rows, columns = form.row_norms(), form.column_norms()
    symmetric, skew = part_spectra(form.query, form.key)
    return HeadForm(
        model,
        *key,
        symmetry=form.symmetry(),
        directionality=form.directionality(),
        norm=form.norm(),
        row_norms=rows,
        column_norms=columns,
        row_threshold=float(threshold(rows)[0]),
        column_threshold=float(threshold(columns)[0]),
        symmetric=symmetric,
        skew=skew,
    )


def part_spectra(query: AnyFloats, key: AnyFloats) -> tuple[Floats, Floats]:
    """Return the eigenvalues of the symmetric part, and those of the skew part divided by i, each `[min(2r, d)]`.

    query: [d, r], W_q
    key:   [d, r], W_k

    Both are sorted, largest first. The spectrum of the skew part is its own negative.

    >>> import numpy as np
    >>> query = np.eye(3)[:, :2]
    >>> key = query @ [[1, 1], [-1, 1]]  # M: the identity and a rotation in a plane
    >>> [spectrum.round(6).tolist() for spectrum in part_spectra(query, key)]
    [[1.0, 1.0, 0.0], [1.0, 0.0, -1.0]]
    """
    left, right = query.astype(np.float64), key.astype(np.float64)
    d, r = left.shape
    if 2 * r < d:
        reduced = np.linalg.qr(np.hstack([left, right])).R  # [2r, 2r]
        left, right = reduced[:, :r], reduced[:, r:]
    form = left @ right.T  # [n, n], n = min(2r, d)
    symmetric = np.linalg.eigvalsh((form + form.T) / 2)[::-1]
    skew = np.linalg.eigvalsh((form - form.T) / 2j)[::-1]  # Hermitian
    return np.asarray(symmetric), np.asarray((skew - skew[::-1]) / 2)
