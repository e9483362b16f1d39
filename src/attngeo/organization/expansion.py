"""The expansion of an array in the Haar basis of its trees, and the controls that its sparsity is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from attngeo.arguments import whole_number
from attngeo.arrays import AnyArray, ArrayInput, Floats, to_numpy
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import (
    as_plain,
    from_plain,
    load_arrays,
    load_json,
    naming_file,
    required_array,
    save_arrays,
    save_json,
    states_options,
)
from attngeo.io.progress import Progress, accepts_progress_bar
from attngeo.organization.checks import ByValue, checked, checked_for_haar
from attngeo.organization.coefficients import ENERGIES, Holder, Sparsity, holder, sparsity
from attngeo.organization.haar import forward, inverse
from attngeo.organization.organize import Settings, organize
from attngeo.organization.tree import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Row: TypeAlias = dict[str, str | float | None]  # column name → value

CHUNK = 1 << 20  # coefficients whose entropy is summed at a time
LARGEST_PERMUTED = 1 << 25  # values that trees are fitted to as a control; of a larger array, a block of its values
TREES, DYADIC = "trees", "dyadic trees"
PERMUTED = {TREES: "permuted: trees", DYADIC: "permuted: dyadic trees"}


@dataclass(frozen=True)
class Profile:
    """Sparsity and smoothness in one basis; cosines have no local supports and therefore no exponent."""

    name: str
    sparsity: Sparsity
    holder: Holder | None


@dataclass(frozen=True)
class SparsityControls(Drawable):
    """The figures of the organised trees, followed by those of the controls.

    >>> comparison = organize(planted((32, 32, 12), seed=0)[0]).expand().compare()
    >>> comparison["trees"].sparsity.normalised < comparison["dyadic trees"].sparsity.normalised
    True
    >>> comparison.gain() > 0.5 > 0.2 > comparison.gain(permuted=True)
    True
    """

    profiles: tuple[Profile, ...]
    block: tuple[int, ...] = ()  # shape of the block of permuted values that trees were fitted to; (): all of them

    def __getitem__(self, name: str) -> Profile:
        """Return the profile of a basis, for example comparison["dyadic trees"]."""
        return {profile.name: profile for profile in self.profiles}[name]

    def __contains__(self, name: str) -> bool:
        """Tell whether there is a profile of this basis."""
        return any(profile.name == name for profile in self.profiles)

    def gain(self, *, permuted: bool = False) -> float:
        """Return 1 − (l1/l2 of the trees) / (l1/l2 of dyadic trees), of the values or of the permuted values.

        Permuted values have no structure, so a gain on them measures how much the trees fit noise.
        """
        fitted, dyadic = ((PERMUTED[name] if permuted else name) for name in (TREES, DYADIC))
        if fitted not in self or dyadic not in self:
            raise InputError(f"comparison: has no profile {fitted!r} or {dyadic!r}, so there is no gain to compute")
        reference = self[dyadic].sparsity.normalised
        return 1 - self[fitted].sparsity.normalised / reference if reference > 0 else 0.0

    def rows(self) -> list[Row]:
        """Return one row per basis, for tables."""
        rows = []
        for profile in self.profiles:
            row: Row = {"basis": profile.name, "l1": profile.sparsity.l1, "l2": profile.sparsity.l2}
            row["l1/l2"] = profile.sparsity.normalised
            row |= {f"share of {100 * energy:g}%": profile.sparsity.shares[energy] for energy in ENERGIES}
            row["exponent"] = None if profile.holder is None else profile.holder.exponent
            row["exponent error"] = None if profile.holder is None else profile.holder.error
            rows.append(row)
        return rows

    def plot(self) -> Figure:
        """Return a figure with the best-n-term curve and the smoothness of every basis."""
        return draw("sparsity_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write the comparison to one .json file and return its path."""
        return save_json(path, "comparison", as_plain(self), of=self)

    @classmethod
    def load(cls, path: str | Path) -> SparsityControls:
        """Return the comparison that `save` wrote."""
        stored = load_json(path, "comparison")
        with naming_file(path):
            comparison = from_plain(cls, stored)
            _check(comparison)
            return comparison

    def __repr__(self) -> str:
        lines = [f"{'':22}{'l1/l2':>10}" + "".join(f"{f'{100 * e:g}%':>10}" for e in ENERGIES) + f"{'exponent':>18}"]
        for profile in self.profiles:
            shares = "".join(f"{100 * profile.sparsity.shares[energy]:9.3g}%" for energy in ENERGIES)
            fit = profile.holder
            exponent = "" if fit is None else f"{fit.exponent:.3f} ± {fit.error:.3f}"
            lines.append(f"{profile.name:22}{profile.sparsity.normalised:10.4g}{shares}{exponent:>18}".rstrip())
        verdict = f"the l1/l2 of the trees is {100 * self.gain():.1f}% below that of dyadic trees"
        if PERMUTED[TREES] in self:
            permuted = f"{100 * self.gain(permuted=True):.1f}%"
            verdict += f"; {permuted} for trees fitted to permuted values, which have no structure"
            if self.block:
                verdict += f" (to a block of {' × '.join(map(str, self.block))} of them)"
        return "\n".join([*lines, verdict])


def _permuted(array: NDArray[Any], rng: np.random.Generator) -> tuple[NDArray[Any], tuple[int, ...]]:
    """Return the values of an array in random places, and (); of a large array a block of them, and its shape."""
    side = max(array.shape)
    while prod(block := tuple(min(n, side) for n in array.shape)) > LARGEST_PERMUTED:
        side -= 1
    if block == array.shape:
        return rng.permuted(array), ()
    return array.reshape(-1)[rng.integers(0, array.size, block)], block


def _dyadic(trees: Sequence[Tree]) -> tuple[Tree, ...]:
    """Return dyadic trees of the same axes."""
    return tuple(Tree.dyadic(tree.size) for tree in trees)


def _of_cosines(array: NDArray[Any], axes: tuple[int, ...] | None) -> Sparsity:
    """Return the sparsity of an array, overwritten, under the discrete cosine transform along `axes`, None for all."""
    from scipy.fft import dctn

    return sparsity(dctn(array, axes=axes, norm="ortho", overwrite_x=True), overwrite=True)


def _on_trees(name: str, array: NDArray[Any], trees: tuple[Tree, ...]) -> Profile:
    """Return the profile of an array, which is overwritten, in the Haar basis of the trees."""
    coefficients = forward(array, dict(enumerate(trees)), overwrite=True)
    smoothness = holder(coefficients, trees, overwrite=True)
    return Profile(name, sparsity(coefficients, overwrite=True), smoothness)


def _check(comparison: SparsityControls) -> None:
    """Raise InputError if a comparison from a file lacks a basis or figures that its methods need."""
    for name in (TREES, DYADIC):
        if name not in comparison:
            raise InputError(f"has no profile {name!r}, expected {TREES!r} and {DYADIC!r}")
    if (PERMUTED[TREES] in comparison) != (PERMUTED[DYADIC] in comparison):
        raise InputError(f"has only one of the profiles {PERMUTED[TREES]!r} and {PERMUTED[DYADIC]!r}")
    for profile in comparison.profiles:
        curve, fit = profile.sparsity, profile.holder
        if not set(ENERGIES) <= set(curve.shares):
            raise InputError(f"{profile.name}: has shares of {sorted(curve.shares)}, expected {list(ENERGIES)}")
        if len(curve.counts) != len(curve.errors):
            raise InputError(f"{profile.name}: has {len(curve.counts)} counts and {len(curve.errors)} errors")
        if fit is not None and len({len(fit.support), len(fit.log_rms), len(fit.log_high), len(fit.counts)}) > 1:
            raise InputError(f"{profile.name}: the arrays of its regularity differ in length")


@dataclass(frozen=True, eq=False)
class Expansion(ByValue, Drawable):
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
            support = np.empty(0) if coarsest is None else self.support  # which takes 8 bytes per coefficient
            return float(_entropy(columns, support, normalised, coarsest)[0])
        shares = [tree.rotations.share for tree in self.trees[:2]]
        bi = inverse(self._numpy(), {2: self.trees[2]})  # [queries, keys, heads] expanded along queries and keys
        # A head of zeros comes back from the coefficients of the network as rounding, of which l1/l2 says nothing.
        rounding = float(np.finfo(bi.dtype).eps) * float(np.sqrt(np.einsum("qkh,qkh->", bi, bi, dtype=np.float64)))
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
    @states_options
    def compare(
        self,
        seed: int = 0,
        *,
        permuted: bool = True,
        device: str | None = None,
        progress: Progress | bool | None = None,
    ) -> SparsityControls:
        """Return sparsity and smoothness together with those of controls: shuffled axes, dyadic trees, cosines.

        Trees fitted to the values they are judged on gain something even without structure. If `organize` fitted the
        trees, `permuted` therefore adds two more controls: trees fitted with the same settings to the same values in
        random places, and dyadic trees on those values. Of an array with more than 2²⁵ values they are fitted to a
        block of that many, drawn at random, which takes a bounded time; trees gain less on a smaller array. `block` has
        its shape.

        seed:     seed of the shuffled axes and of the permuted values
        device:   torch device for fitting the permuted control
        progress: `progress(done, total)` is called after every axis; True draws a progress bar
        """
        rng = np.random.default_rng(whole_number(seed, "seed"))
        # Each control overwrites an array of its own: with the coefficients, two of this size are held at a time.
        profiles = [Profile(TREES, self.sparsity, self.holder)]
        # To shuffle an axis is to give its elements other places in the tree.
        shuffled = tuple(tree.permuted(np.argsort(rng.permutation(tree.size))) for tree in self.trees)
        profiles.append(_on_trees("shuffled axes", self._array(), shuffled))
        profiles.append(_on_trees(DYADIC, self._array(), _dyadic(self.trees)))
        if len(self.trees) == 3:
            profiles.append(Profile("cosines per head", _of_cosines(self._array(), (0, 1)), None))
        profiles.append(Profile("cosines", _of_cosines(self._array(), None), None))
        block: tuple[int, ...] = ()
        if permuted and self.settings:
            noise, block = _permuted(self._array(), rng)
            fitted = organize(noise, **self.settings, device=device, progress=progress).trees
            profiles.append(_on_trees(PERMUTED[TREES], noise.copy(), fitted))
            profiles.append(_on_trees(PERMUTED[DYADIC], noise, _dyadic(fitted)))
        return SparsityControls(tuple(profiles), block)

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
            settings = Settings.stored(about.get("settings", {}))
        return cls(coefficients, trees, settings)

    def _array(self) -> NDArray[Any]:
        """Return the original array as a NumPy array of its own."""
        return np.ascontiguousarray(to_numpy(self.inverse()))

    def _numpy(self) -> NDArray[Any]:
        array: NDArray[Any] = to_numpy(self.coefficients)
        return array

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
    parts = np.array_split(columns, -(-columns.size // CHUNK))  # a copy of all would take too much memory
    l1 = np.sum([np.abs(part).sum(0, dtype=np.float64) for part in parts], 0)
    if not normalised:
        return np.asarray(l1)
    l2 = np.sqrt(np.sum([np.square(part, dtype=np.float64).sum(0) for part in parts], 0))
    return np.asarray(np.divide(l1, l2, out=np.zeros_like(l1), where=l2 > rounding))
