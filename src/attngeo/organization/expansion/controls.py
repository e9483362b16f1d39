"""What sparsity is worth: the same figures where there is nothing to find, or where other bases look for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.display import Drawable, draw
from attngeo.io.archive import as_plain, load_json, naming_file, save_json
from attngeo.io.progress import Progress
from attngeo.organization.haar.smoothness import Holder, holder
from attngeo.organization.haar.sparsity import ENERGIES, Sparsity, sparsity
from attngeo.organization.haar.transform import forward
from attngeo.organization.questionnaire.iterate import Settings, prepared, settle
from attngeo.organization.trees.tree import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TREES, DYADIC = "trees", "dyadic trees"
PERMUTED = {TREES: "permuted: trees", DYADIC: "permuted: dyadic trees"}


@dataclass(frozen=True)
class Profile:
    """One basis' figures; cosines have no supports, so no exponent."""

    name: str
    sparsity: Sparsity
    holder: Holder | None


@dataclass(frozen=True)
class Comparison(Drawable):
    """The organised trees first, then the controls.

    >>> comparison = organize(planted((32, 32, 12), seed=0)[0]).expand().compare()
    >>> comparison["trees"].sparsity.normalised < comparison["dyadic trees"].sparsity.normalised
    True
    >>> comparison.gain() > 0.5 > 0.2 > comparison.gain(permuted=True)
    True
    """

    profiles: tuple[Profile, ...]

    def __getitem__(self, name: str) -> Profile:
        return {profile.name: profile for profile in self.profiles}[name]

    def __contains__(self, name: str) -> bool:
        return any(profile.name == name for profile in self.profiles)

    def gain(self, *, permuted: bool = False) -> float:
        """How far the trees' l1 over l2 lies below that of dyadic trees, as a share of it; or that on permuted values.

        What is gained on permuted values is fit, not structure.
        """
        fitted, given = ((PERMUTED[name] if permuted else name) for name in (TREES, DYADIC))
        whole = self[given].sparsity.normalised
        return 1 - self[fitted].sparsity.normalised / whole if whole > 0 else 0.0

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

    def plot(self) -> Figure:
        """The best-n-term curves and the regularity of every basis."""
        return draw("sparsity_figure", self)

    def save(self, path: str | Path) -> Path:
        """Write to one .json file."""
        return save_json(path, "comparison", as_plain(self))

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
        """Read what `save` wrote."""
        stored = load_json(path, "comparison")
        with naming_file(path):
            return cls(tuple(_profile(**profile) for profile in stored["profiles"]))

    def __repr__(self) -> str:
        lines = [f"{'':24}{'l1/l2':>10}" + "".join(f"{f'{100 * e:g}%':>10}" for e in ENERGIES) + f"{'exponent':>18}"]
        for profile in self.profiles:
            shares = "".join(f"{100 * profile.sparsity.shares[energy]:9.3g}%" for energy in ENERGIES)
            fit = profile.holder
            exponent = "" if fit is None else f"{fit.exponent:.3f} ± {fit.error:.3f}"
            lines.append(f"{profile.name:24}{profile.sparsity.normalised:10.4g}{shares}{exponent:>18}".rstrip())
        said = f"in l1/l2 the trees lie {100 * self.gain():.1f}% below dyadic trees"
        if PERMUTED[TREES] in self:
            said += f"; fitted to permuted values, where nothing is to be found, {100 * self.gain(permuted=True):.1f}%"
        return "\n".join([*lines, said])


def compare(
    own: Profile,
    array: Any,
    trees: tuple[Tree, ...],
    settings: Mapping[str, Any],
    seed: int,
    device: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Return the figures `own` of an array on its trees beside those of its controls.

    settings: the questionnaire's settings for the permuted control, which is left out where they are empty
    seed: of the shuffled axes and the permuted values
    """
    rng = np.random.default_rng(seed)
    profiles = [own, *_controls(array, trees, rng)]
    if settings:
        noise = rng.permuted(array)
        values = prepared(noise, device)
        fitted = settle(values, Settings.of(values.ndim, **settings), progress).trees
        profiles += [_on_trees(PERMUTED[TREES], noise, fitted), _on_trees(PERMUTED[DYADIC], noise, _dyadic(noise))]
    return Comparison(tuple(profiles))


def _controls(array: Any, trees: tuple[Tree, ...], rng: np.random.Generator) -> Iterator[Profile]:
    from scipy.fft import dctn

    yield _on_trees("shuffled axes", array[np.ix_(*(rng.permutation(n) for n in array.shape))], trees)
    yield _on_trees(DYADIC, array, _dyadic(array))
    if array.ndim == 3:
        yield Profile("cosines per head", sparsity(dctn(array, axes=(0, 1), norm="ortho")), None)
    yield Profile("cosines", sparsity(dctn(array, norm="ortho")), None)


def _dyadic(array: Any) -> tuple[Tree, ...]:
    return tuple(Tree.dyadic(n) for n in array.shape)


def _on_trees(name: str, array: Any, trees: tuple[Tree, ...]) -> Profile:
    coefficients = forward(array, dict(enumerate(trees)))
    return Profile(name, sparsity(coefficients), holder(coefficients, trees))


def _profile(name: str, sparsity: dict[str, Any], holder: dict[str, Any] | None) -> Profile:
    counts, errors = np.asarray(sparsity["counts"], np.int64), np.asarray(sparsity["errors"], np.float64)
    shares = {float(energy): share for energy, share in sparsity["shares"].items()}
    fit = None if holder is None else Holder.from_plain(holder)
    return Profile(name, Sparsity(sparsity["l1"], sparsity["l2"], shares, counts, errors), fit)
