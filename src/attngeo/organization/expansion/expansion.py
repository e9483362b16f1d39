"""An array in the Haar basis of its trees: coefficients, entropy, sparsity, regularity, each beside its controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attngeo.arrays import Floats, to_numpy
from attngeo.display import Drawable
from attngeo.errors import InputError
from attngeo.io.archive import load_arrays, naming_file, required_array, save_arrays
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.organization.checks import checked
from attngeo.organization.expansion.controls import TREES, Comparison, Profile, compare
from attngeo.organization.haar.smoothness import Holder, holder
from attngeo.organization.haar.sparsity import Sparsity, sparsity
from attngeo.organization.haar.transform import forward, inverse
from attngeo.organization.trees.tree import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Expansion(Drawable):
    """Haar coefficients of a matrix or a 3-tensor along a tree an axis, columns as in `Tree.haar`.

    >>> array, trees = planted((16, 12, 8), seed=0)
    >>> expansion = expand(array, trees)
    >>> expansion.coefficients.shape, bool(abs(expansion.inverse() - array).max() < 1e-12)
    ((16, 12, 8), True)
    >>> expansion.entropy("head").shape, round(expansion.entropy("network"))
    ((8,), 225)
    >>> expansion.sparsity
    Sparsity(l1/l2 4.896; 90% in 0.195%, 99% in 3.71%, 99.9% in 15.3%)
    """

    coefficients: Any  # shape, kind and precision of the array
    trees: tuple[Tree, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # how the trees were fitted; empty: they were given

    def inverse(self) -> Any:
        """The array again, to rounding."""
        return inverse(self.coefficients, dict(enumerate(self.trees)))

    @cached_property
    def support(self) -> Floats:
        """|R| of every coefficient: the product of its functions' supports, as shares of their axes."""
        return np.asarray(reduce(np.multiply.outer, [tree.rotations.share for tree in self.trees]))

    def entropy(
        self, of: Literal["head", "network"] = "network", *, normalised: bool = False, coarsest: int | None = None
    ) -> Any:
        """Σ|coefficients|: of the network (all axes expanded) or of every head [heads] (queries and keys expanded).

        `normalised` divides by the l2 norm of the same coefficients, so that networks and scales compare; `coarsest`
        takes only so many, those of largest support.
        """
        if of not in ("head", "network"):
            raise InputError(f"entropy: of {of!r}, expected 'head' or 'network'")
        if coarsest is not None and coarsest < 1:
            raise InputError(f"entropy: expected at least one coefficient, got coarsest={coarsest}")
        if of == "network" or len(self.trees) == 2:
            figures = _entropy(self._numpy().reshape(-1, 1), self.support, normalised, coarsest)
            return float(figures[0])
        shares = [tree.rotations.share for tree in self.trees[:2]]
        bi = inverse(self._numpy(), {2: self.trees[2]})  # [queries, keys, heads] bi-Haar
        return _entropy(bi.reshape(-1, bi.shape[2]), np.multiply.outer(*shares), normalised, coarsest)

    @cached_property
    def sparsity(self) -> Sparsity:
        """Shares of the coefficients that hold 90, 99, 99.9% of the energy, and the best-n-term curve."""
        return sparsity(self.coefficients)

    @cached_property
    def holder(self) -> Holder:
        """The mixed-Hölder exponent and its fit."""
        return holder(self._numpy(), self.trees)

    @accepts_progress_bar
    def compare(
        self,
        seed: int = 0,
        *,
        permuted: bool = True,
        device: str | None = None,
        progress: Progress | bool | None = None,
    ) -> Comparison:
        """The same figures for the controls: shuffled axes, dyadic trees, cosines.

        Trees fitted to the values they are judged on gain something even where there is nothing to find. Where
        `settings` say how they were fitted, `permuted` adds trees fitted the same way to the same values in random
        places, beside dyadic trees on those, which takes as long as organising did, on `device` too.
        """
        own = Profile(TREES, self.sparsity, self.holder)
        settings = self.settings if permuted else {}
        call = progress if callable(progress) else None
        return compare(own, to_numpy(self.inverse()), self.trees, settings, seed, device, call)

    def plot(self) -> Figure:
        """The best-n-term curve and the regularity, beside the controls that need no fitting."""
        return self.compare(permuted=False).plot()

    def save(self, path: str | Path) -> Path:
        """Write to one .npz file."""
        arrays = {"coefficients": self._numpy()}
        for axis, tree in enumerate(self.trees):
            arrays |= tree.as_arrays(f"tree{axis}")
        return save_arrays(path, "expansion", arrays, {"settings": dict(self.settings)})

    @classmethod
    def load(cls, path: str | Path) -> Expansion:
        """Read what `save` wrote."""
        arrays, about = load_arrays(path, "expansion")
        with naming_file(path):
            coefficients = checked(required_array(arrays, "coefficients"), "coefficients")
            trees = tuple(Tree.from_arrays(arrays, f"tree{axis}") for axis in range(coefficients.ndim))
            if coefficients.shape != tuple(tree.size for tree in trees):
                raise InputError(f"the trees do not match the coefficients {coefficients.shape}")
        return cls(coefficients, trees, about.get("settings", {}))

    def _numpy(self) -> Any:
        return to_numpy(self.coefficients)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expansion):
            return NotImplemented
        same = self.trees == other.trees and dict(self.settings) == dict(other.settings)
        return same and np.array_equal(self._numpy(), other._numpy())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shape = " × ".join(str(tree.size) for tree in self.trees)
        return f"Expansion({shape}, l1/l2 {self.sparsity.normalised:.4g}, α {self.holder.exponent:.3f})"


def expand(array: Any, trees: Mapping[int, Tree] | Sequence[Tree]) -> Expansion:
    """Expand a matrix or a 3-tensor in the Haar basis of one tree an axis.

    >>> expand([[4, 2], [4, 2]], [Tree.dyadic(2), Tree.dyadic(2)]).coefficients.round(6) + 0.0
    array([[ 6., -2.],
           [ 0.,  0.]])
    """
    array = checked(array)
    found = dict(trees) if isinstance(trees, Mapping) else dict(enumerate(trees))
    if sorted(found) != list(range(array.ndim)):
        raise InputError(f"expand: expected a tree for each of the {array.ndim} axes, got axes {sorted(found)}")
    ordered = tuple(found[axis] for axis in range(array.ndim))
    return Expansion(forward(array, dict(enumerate(ordered))), ordered)


def _entropy(columns: Any, support: Floats, normalised: bool, coarsest: int | None) -> Floats:
    """Σ|·| of each column of [coefficients, columns]."""
    if coarsest is not None:
        columns = columns[np.argsort(-support.reshape(-1), kind="stable")[:coarsest]]
    l1 = np.abs(columns).sum(0, dtype=np.float64)
    if not normalised:
        return np.asarray(l1)
    l2 = np.sqrt(np.square(columns, dtype=np.float64).sum(0))
    return np.asarray(np.divide(l1, l2, out=np.zeros_like(l1), where=l2 > 0))
