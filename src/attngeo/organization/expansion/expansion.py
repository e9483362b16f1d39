"""The expansion of an array in the Haar basis of its trees: coefficients, entropy, sparsity and smoothness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from attngeo.arrays import AnyArray, ArrayInput, Floats, to_numpy
from attngeo.display import Drawable
from attngeo.errors import InputError
from attngeo.io.archive import load_arrays, naming_file, required_array, save_arrays
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.organization.checks import checked, checked_for_haar
from attngeo.organization.expansion.controls import TREES, Comparison, Profile, compare
from attngeo.organization.haar.smoothness import Holder, holder
from attngeo.organization.haar.sparsity import Sparsity, sparsity
from attngeo.organization.haar.transform import forward, inverse
from attngeo.organization.questionnaire.settings import checked_settings
from attngeo.organization.trees.tree import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Expansion(Drawable):
    """The Haar coefficients of a matrix or a 3-tensor along one tree per axis, in the order of `Tree.haar`.

    >>> array, trees = planted((16, 12, 8), seed=0)
    >>> expansion = expand(array, trees)
    >>> expansion.coefficients.shape, bool(abs(expansion.inverse() - array).max() < 1e-12)
    ((16, 12, 8), True)
    >>> expansion.entropy("head").shape, round(expansion.entropy("network"))
    ((8,), 225)
    >>> expansion.sparsity
    Sparsity(l1/l2 4.896; 90% in 0.195%, 99% in 3.71%, 99.9% in 15.3%)
    """

    coefficients: AnyArray  # shape, library and precision of the array
    trees: tuple[Tree, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # of `organize`, if it fitted the trees

    def inverse(self) -> AnyArray:
        """Return the original array, up to rounding."""
        array: AnyArray = inverse(self.coefficients, dict(enumerate(self.trees)))
        return array

    @cached_property
    def support(self) -> Floats:
        """Return |R| of every coefficient: the product over the axes of the support's share of the axis."""
        return np.asarray(reduce(np.multiply.outer, [tree.rotations.share for tree in self.trees]))

    @overload
    def entropy(
        self, of: Literal["network"] = "network", *, normalised: bool = False, coarsest: int | None = None
    ) -> float: ...

    @overload
    def entropy(
        self, of: Literal["head"], *, normalised: bool = False, coarsest: int | None = None
    ) -> float | Floats: ...

    def entropy(
        self, of: Literal["head", "network"] = "network", *, normalised: bool = False, coarsest: int | None = None
    ) -> float | Floats:
        """Return the l1 entropy Σ|coefficients| of the network, or that of every head [heads].

        The network is expanded along all axes, a head along queries and keys. A matrix is one head.

        normalised: divide by the l2 norm of the same coefficients, so that networks and scales can be compared; 0 for a
                    head that is zero up to the rounding of the network's coefficients
        coarsest:   use only this number of coefficients, those with the largest support
        """
        if of not in ("head", "network"):
            raise InputError(f"entropy: of {of!r}, expected 'head' or 'network'")
        if coarsest is not None and coarsest < 1:
            raise InputError(f"entropy: expected coarsest to be at least 1, got {coarsest}")
        if of == "network" or len(self.trees) == 2:
            columns = self._numpy().reshape(-1, 1)  # [coefficients, 1]
            return float(_entropy(columns, self.support, normalised, coarsest)[0])
        shares = [tree.rotations.share for tree in self.trees[:2]]
        bi = inverse(self._numpy(), {2: self.trees[2]})  # [queries, keys, heads] expanded along queries and keys
        # A head of zeros comes back from the coefficients of the network as rounding, of which l1/l2 says nothing.
        rounding = float(np.finfo(bi.dtype).eps) * float(np.sqrt(np.square(bi, dtype=np.float64).sum()))
        return _entropy(bi.reshape(-1, bi.shape[2]), np.multiply.outer(*shares), normalised, coarsest, rounding)

    @cached_property
    def sparsity(self) -> Sparsity:
        """Return the sparsity: shares of the coefficients that hold 90, 99, 99.9% of the energy, best-n-term errors."""
        return sparsity(self.coefficients)

    @cached_property
    def holder(self) -> Holder:
        """Return the fit of the mixed-Hölder exponent."""
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
        """Return sparsity and smoothness together with those of controls: shuffled axes, dyadic trees, cosines.

        Trees fitted to the values they are judged on gain something even without structure. If `organize` fitted the
        trees, `permuted` therefore adds two more controls: trees fitted with the same settings to the same values in
        random places, and dyadic trees on those values. This takes as long as `organize` did.

        seed:     seed of the shuffled axes and of the permuted values
        device:   torch device for fitting the permuted control
        progress: `progress(done, total)` is called after every axis; True draws a progress bar
        """
        own = Profile(TREES, self.sparsity, self.holder)
        settings = self.settings if permuted else {}
        call = progress if callable(progress) else None
        return compare(own, to_numpy(self.inverse()), self.trees, settings, seed, device, call)

    def plot(self) -> Figure:
        """Return a figure of the best-n-term curve and the smoothness, with the controls that need no fitting."""
        return self.compare(permuted=False).plot()

    def save(self, path: str | Path) -> Path:
        """Write the expansion to one .npz file and return its path."""
        arrays: dict[str, NDArray[Any]] = {"coefficients": self._numpy()}
        for axis, tree in enumerate(self.trees):
            arrays |= tree.as_arrays(f"tree{axis}")
        return save_arrays(path, "expansion", arrays, {"settings": dict(self.settings)})

    @classmethod
    def load(cls, path: str | Path) -> Expansion:
        """Return the expansion that `save` wrote."""
        arrays, about = load_arrays(path, "expansion")
        with naming_file(path):
            coefficients = checked(required_array(arrays, "coefficients"), "coefficients")
            trees = tuple(Tree.from_arrays(arrays, f"tree{axis}") for axis in range(coefficients.ndim))
            if coefficients.shape != tuple(tree.size for tree in trees):
                sizes = tuple(tree.size for tree in trees)
                raise InputError(f"coefficients of shape {coefficients.shape} do not match trees of sizes {sizes}")
            settings = checked_settings(about.get("settings", {}))
        return cls(coefficients, trees, settings)

    def _numpy(self) -> NDArray[Any]:
        array: NDArray[Any] = to_numpy(self.coefficients)
        return array

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expansion):
            return NotImplemented
        same = self.trees == other.trees and dict(self.settings) == dict(other.settings)
        return same and np.array_equal(self._numpy(), other._numpy())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shape = " × ".join(str(tree.size) for tree in self.trees)
        return f"Expansion({shape}, l1/l2 {self.sparsity.normalised:.4g}, α {self.holder.exponent:.3f})"


def expand(array: ArrayInput, trees: Mapping[int, Tree] | Sequence[Tree]) -> Expansion:
    """Return the expansion of a matrix or a 3-tensor in the Haar basis of one tree per axis.

    trees: the trees in the order of the axes, or a mapping from axis to tree

    >>> expand([[4, 2], [4, 2]], [Tree.dyadic(2), Tree.dyadic(2)]).coefficients.round(6) + 0.0
    array([[ 6., -2.],
           [ 0.,  0.]])
    """
    values = checked_for_haar(array, "array")
    by_axis = dict(trees) if isinstance(trees, Mapping) else dict(enumerate(trees))
    if sorted(by_axis) != list(range(values.ndim)):
        raise InputError(f"expand: expected a tree for each of the {values.ndim} axes, got axes {sorted(by_axis)}")
    ordered = tuple(by_axis[axis] for axis in range(values.ndim))
    return Expansion(forward(values, dict(enumerate(ordered))), ordered)


def _entropy(
    columns: NDArray[Any], support: Floats, normalised: bool, coarsest: int | None, rounding: float = 0.0
) -> Floats:
    """Return the l1 norm of each column of [coefficients, columns], with the options of `Expansion.entropy`.

    rounding: l2 norm up to which a column counts as zero
    """
    if coarsest is not None:
        columns = columns[np.argsort(-support.reshape(-1), kind="stable")[:coarsest]]
    l1 = np.abs(columns).sum(0, dtype=np.float64)
    if not normalised:
        return np.asarray(l1)
    l2 = np.sqrt(np.square(columns, dtype=np.float64).sum(0))
    return np.asarray(np.divide(l1, l2, out=np.zeros_like(l1), where=l2 > rounding))
