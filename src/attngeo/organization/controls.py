"""What sparsity is worth: the same figures where there is nothing to find, or where other bases look for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.organization.haar import forward
from attngeo.organization.holder import Holder, holder
from attngeo.organization.sparsity import ENERGIES, Sparsity, sparsity
from attngeo.organization.tree import Tree

if TYPE_CHECKING:
    from attngeo.organization.expansion import Expansion


@dataclass(frozen=True)
class Profile:
    """One basis' figures; cosines have no supports, so no exponent."""

    name: str
    sparsity: Sparsity
    holder: Holder | None


@dataclass(frozen=True)
class Comparison:
    """The organised trees first, then the controls."""

    profiles: tuple[Profile, ...]

    def __getitem__(self, name: str) -> Profile:
        return {profile.name: profile for profile in self.profiles}[name]

    def rows(self) -> list[dict[str, Any]]:
        """One plain row a basis, for tables."""
        rows = []
        for profile in self.profiles:
            row: dict[str, Any] = {"basis": profile.name, "l1": profile.sparsity.l1, "l2": profile.sparsity.l2}
            row["l1/l2"] = profile.sparsity.normalised
            row |= {f"share of {100 * energy:g}%": profile.sparsity.shares[energy] for energy in ENERGIES}
            row["exponent"] = None if profile.holder is None else profile.holder.exponent
            row["exponent error"] = None if profile.holder is None else profile.holder.error
            rows.append(row)
        return rows

    def __str__(self) -> str:
        lines = [f"{'':24}{'l1/l2':>10}" + "".join(f"{f'{100 * e:g}%':>10}" for e in ENERGIES) + f"{'exponent':>18}"]
        for profile in self.profiles:
            shares = "".join(f"{100 * profile.sparsity.shares[energy]:9.3g}%" for energy in ENERGIES)
            fit = profile.holder
            exponent = "" if fit is None else f"{fit.exponent:.3f} ± {fit.error:.3f}"
            lines.append(f"{profile.name:24}{profile.sparsity.normalised:10.4g}{shares}{exponent:>18}")
        return "\n".join(lines)


def compare(expansion: Expansion, seed: int = 0) -> Comparison:
    """The expansion's own figures and those of its controls; `seed` shuffles."""
    own = Profile("trees", expansion.sparsity, expansion.holder)
    array = np.asarray(expansion.inverse())
    return Comparison((own, *_controls(array, expansion.trees, seed)))


def _controls(array: Any, trees: tuple[Tree, ...], seed: int) -> Iterator[Profile]:
    from scipy.fft import dctn

    rng = np.random.default_rng(seed)
    shuffled = array[np.ix_(*(rng.permutation(n) for n in array.shape))]
    coefficients = forward(shuffled, dict(enumerate(trees)))
    yield Profile("shuffled axes", sparsity(coefficients), holder(coefficients, trees))
    dyadic = tuple(Tree.dyadic(n) for n in array.shape)
    coefficients = forward(array, dict(enumerate(dyadic)))
    yield Profile("dyadic trees", sparsity(coefficients), holder(coefficients, dyadic))
    if array.ndim == 3:
        yield Profile("cosines per head", sparsity(dctn(array, axes=(0, 1), norm="ortho")), None)
    yield Profile("cosines", sparsity(dctn(array, norm="ortho")), None)
