"""`RotaryPairs`: which dimensions of a head rotate with the position of a token, and how fast."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from attngeo.arrays import Floats, Ints
from attngeo.errors import InputError


@dataclass(frozen=True, eq=False)
class RotaryPairs:
    """Rotary position embedding of one head of size r.

    At position p, the two dimensions of pair f are rotated by the angle p·θ_f, in queries and in keys alike. A pair
    with θ = 0 does not rotate.

    >>> RotaryPairs.halves([1.0, 0.1]).pairs.tolist(), RotaryPairs.neighbours([1.0, 0.1]).pairs.tolist()
    ([[0, 2], [1, 3]], [[0, 1], [2, 3]])
    """

    pairs: Ints  # [n, 2], dimensions of the head
    frequencies: Floats  # [n], θ in radians per position
    factor: float = 1.0  # attention factor (YaRN, LongRoPE): multiplies the paired dimensions of queries and of keys
    window: int | None = None  # number of positions the model was made for
    axes: Ints | None = None  # [n], the position axis that each pair follows (rows, columns); None: one axis for all

    def __init__(
        self,
        pairs: ArrayLike,
        frequencies: ArrayLike,
        factor: float = 1.0,
        window: int | None = None,
        axes: ArrayLike | None = None,
    ) -> None:
        object.__setattr__(self, "pairs", np.asarray(pairs, np.int64).reshape(-1, 2))
        object.__setattr__(self, "frequencies", np.asarray(frequencies, np.float64))
        object.__setattr__(self, "factor", float(factor))
        object.__setattr__(self, "window", window)
        object.__setattr__(self, "axes", None if axes is None else np.asarray(axes, np.int64))
        dimensions = self.pairs.ravel()
        if self.frequencies.shape != (len(self.pairs),):
            raise InputError(
                f"RotaryPairs: {len(self.pairs)} pairs, but frequencies of shape {list(self.frequencies.shape)}"
            )
        if len(dimensions) and (dimensions.min() < 0 or len(set(dimensions.tolist())) < len(dimensions)):
            raise InputError("RotaryPairs: expected pairs of different dimensions, numbered from 0")
        if not np.isfinite(self.frequencies).all() or not 0 < self.factor < np.inf:
            raise InputError("RotaryPairs: expected finite frequencies and a positive factor")
        axis = np.zeros(len(self.pairs)) if self.axes is None else self.axes
        # Averages over offsets would mix two pairs that turn equally fast, whether in the same sense or not.
        turns = np.stack([axis, np.abs(self.frequencies)], 1)[self.frequencies != 0]  # [n, 2]
        if len(np.unique(turns, axis=0)) < len(turns):
            raise InputError("RotaryPairs: two pairs have the same frequency, expected different ones on each axis")

    @classmethod
    def halves(
        cls, frequencies: ArrayLike, first: int = 0, factor: float = 1.0, window: int | None = None
    ) -> RotaryPairs:
        """Pair dimension i with i + n, from dimension `first` on: LLaMA, GPT-NeoX and most other models."""
        n = len(np.asarray(frequencies))
        return cls(first + np.arange(2 * n).reshape(2, n).T, frequencies, factor, window)

    @classmethod
    def neighbours(
        cls, frequencies: ArrayLike, first: int = 0, factor: float = 1.0, window: int | None = None
    ) -> RotaryPairs:
        """Pair dimension 2i with 2i + 1, from dimension `first` on: GPT-J and RoFormer, among others."""
        n = len(np.asarray(frequencies))
        return cls(first + np.arange(2 * n).reshape(n, 2), frequencies, factor, window)

    @cached_property
    def turning(self) -> Ints:
        """The pairs that rotate, `[n, 2]`: those with θ ≠ 0."""
        turning: Ints = self.pairs[self.frequencies != 0]
        return turning

    @property
    def turning_frequencies(self) -> Floats:
        """The frequencies of `turning`, `[n]`."""
        frequencies: Floats = self.frequencies[self.frequencies != 0]
        return frequencies

    def fixed(self, size: int) -> Ints:
        """Return the dimensions of a head of this size that do not rotate, `[u]`."""
        if len(self.pairs) and int(self.pairs.max()) >= size:
            raise InputError(f"RotaryPairs: dimension {int(self.pairs.max())} is paired, but the head has size {size}")
        return np.setdiff1d(np.arange(size), self.turning)

    def scale(self, size: int) -> Floats:
        """Return what multiplies each dimension of a head, `[size]`: the attention factor for paired dimensions."""
        self.fixed(size)  # raises for a head that is too small
        scale = np.ones(size)
        scale[self.pairs.ravel()] = self.factor
        return scale

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RotaryPairs)
            and np.array_equal(self.pairs, other.pairs)
            and np.array_equal(self.frequencies, other.frequencies)
            and (self.factor, self.window) == (other.factor, other.window)
            and (None if self.axes is None else self.axes.tolist())
            == (None if other.axes is None else other.axes.tolist())
        )

    def __repr__(self) -> str:
        return f"RotaryPairs({len(self.turning)} pairs, window {self.window})"
