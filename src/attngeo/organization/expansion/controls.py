"""Controls for the sparsity of an organised tensor: other bases, shuffled axes, and trees fitted to permuted values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attngeo.arguments import whole_number
from attngeo.display import Drawable, draw
from attngeo.errors import InputError
from attngeo.io.archive import as_plain, from_plain, load_json, naming_file, save_json
from attngeo.io.progress import Progress
from attngeo.organization.haar.smoothness import Holder, holder
from attngeo.organization.haar.sparsity import ENERGIES, Sparsity, sparsity
from attngeo.organization.haar.transform import forward
from attngeo.organization.questionnaire.iterate import prepared, settle
from attngeo.organization.questionnaire.settings import Settings
from attngeo.organization.trees.tree import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row: TypeAlias = dict[str, str | float | None]  # column name → value

TREES, DYADIC = "trees", "dyadic trees"
PERMUTED = {TREES: "permuted: trees", DYADIC: "permuted: dyadic trees"}


@dataclass(frozen=True)
class Profile:
    """Sparsity and smoothness in one basis; cosines have no local supports and therefore no exponent."""

    name: str
    sparsity: Sparsity
    holder: Holder | None


@dataclass(frozen=True)
class Comparison(Drawable):
    """The figures of the organised trees, followed by those of the controls.

    >>> comparison = organize(planted((32, 32, 12), seed=0)[0]).expand().compare()
    >>> comparison["trees"].sparsity.normalised < comparison["dyadic trees"].sparsity.normalised
    True
    >>> comparison.gain() > 0.5 > 0.2 > comparison.gain(permuted=True)
    True
    """

    profiles: tuple[Profile, ...]

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
        return save_json(path, "comparison", as_plain(self))

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
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
        return "\n".join([*lines, verdict])


def compare(
    own: Profile,
    array: NDArray[Any],
    trees: tuple[Tree, ...],
    settings: Mapping[str, Any],
    seed: int,
    device: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Return the profile `own` of an array along its trees together with the profiles of the controls.

    settings: settings of the questionnaire for the permuted control, which is left out if they are empty
    seed:     seed of the shuffled axes and of the permuted values
    """
    rng = np.random.default_rng(whole_number(seed, "seed"))
    profiles = [own, *_controls(array, trees, rng)]
    if settings:
        noise = rng.permuted(array)  # the same values in random places
        values = prepared(noise, device)
        fitted = settle(values, Settings.of(values.ndim, **settings), progress).trees
        profiles += [_on_trees(PERMUTED[TREES], noise, fitted), _on_trees(PERMUTED[DYADIC], noise, _dyadic(noise))]
    return Comparison(tuple(profiles))


def _controls(array: NDArray[Any], trees: tuple[Tree, ...], rng: np.random.Generator) -> Iterator[Profile]:
    """Yield the profiles of the controls that need no fitting."""
    from scipy.fft import dctn

    yield _on_trees("shuffled axes", array[np.ix_(*(rng.permutation(n) for n in array.shape))], trees)
    yield _on_trees(DYADIC, array, _dyadic(array))
    if array.ndim == 3:
        yield Profile("cosines per head", sparsity(dctn(array, axes=(0, 1), norm="ortho")), None)
    yield Profile("cosines", sparsity(dctn(array, norm="ortho")), None)


def _dyadic(array: NDArray[Any]) -> tuple[Tree, ...]:
    return tuple(Tree.dyadic(n) for n in array.shape)


def _on_trees(name: str, array: NDArray[Any], trees: tuple[Tree, ...]) -> Profile:
    """Return the profile of an array in the Haar basis of the trees."""
    coefficients = forward(array, dict(enumerate(trees)))
    return Profile(name, sparsity(coefficients), holder(coefficients, trees))


def _check(comparison: Comparison) -> None:
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
