"""How far apart two networks of any shape are: fused Gromov–Wasserstein distance of their head geometries.

Null: the heads of one network are permuted, each keeping its affinities and getting the place of another head in the
list of heads, with the depth of that place. If the affinities of this network have nothing to do with depth, the
observed distance and the permuted ones are exchangeable, so that the p-value is valid. Which network is permuted
depends on neither the order in which the two are given nor that of their heads: see `_permuted_last`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attngeo.applications.compare.distance.gromov_wasserstein import fused_gromov_wasserstein
from attngeo.applications.compare.distance.head_geometry import HeadGeometry
from attngeo.applications.compare.p_values import p_text, p_value
from attngeo.arguments import whole_number
from attngeo.arrays import Floats

DRAWS, HEADS = 99, 128  # at most HEADS heads of each network, a seeded choice


@dataclass(frozen=True)
class NetworkDistance:
    """The distance of two networks, its null, and how their sparsity and score profiles differ.

    Each difference is the mean |difference| of two curves: best-n-term error by share of coefficients, and scores of
    the layers by relative depth.
    """

    value: float  # FGW
    null_mean: float  # with the heads of one network permuted, of the one with more heads
    null_std: float
    p_value: float  # (1 + draws at or below the value) / (1 + draws)
    draws: int
    heads_a: int
    heads_b: int
    sparsity: float  # difference of the sparsity curves
    symmetry: float | None = None  # difference of the profiles over depth; None where they are not known
    directionality: float | None = None

    def sentence(self) -> str:
        """Return the distance in words."""
        text = (
            f"{self.value:.3g} between the geometries of {self.heads_a} and {self.heads_b} heads (fused "
            f"Gromov–Wasserstein; permuted heads {self.null_mean:.3g} ± {self.null_std:.1g}, "
            f"{p_text(self.p_value, self.draws)}); sparsity curves differ by {self.sparsity:.2g}"
        )
        if self.symmetry is not None and self.directionality is not None:
            text += f", layer symmetry by {self.symmetry:.2g}, layer directionality by {self.directionality:.2g}"
        return text


def network_distance(
    a: HeadGeometry,
    b: HeadGeometry,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    profiles: tuple[float, float] | tuple[None, None] = (None, None),
) -> NetworkDistance:
    """Return the distance of two networks on the same inputs; it and its p-value are the same in both orders.

    profiles: differences of the symmetry and the directionality profiles, where known

    >>> rng = np.random.default_rng(0)
    >>> affinity = np.exp(-abs(rng.normal(size=6)[:, None] - rng.normal(size=6)))
    >>> geometry = HeadGeometry((affinity + affinity.T) / 2, np.arange(6) / 6, np.ones(64), ("",))
    >>> network_distance(geometry, geometry).value
    0.0
    """
    a.check_same_inputs(b)
    whole_number(draws, "draws", 2)
    whole_number(seed, "seed")
    sizes = len(a.depth), len(b.depth)
    kept, permuted = sorted((a.subset(HEADS, seed), b.subset(HEADS, seed)), key=_permuted_last)
    value = fused_gromov_wasserstein(kept.affinity, permuted.affinity, kept.depth, permuted.depth)
    null = np.empty(draws)
    for draw, rng in enumerate(np.random.default_rng([seed, 5]).spawn(draws)):
        order = rng.permutation(len(permuted.depth))
        # The affinities are permuted rather than the depths: heads are listed in the order of their depths, the search
        # starts once with the heads paired in this order, and the draws must have this start too.
        affinity = permuted.affinity[np.ix_(order, order)]  # [n, n]
        null[draw] = fused_gromov_wasserstein(kept.affinity, affinity, kept.depth, permuted.depth)
    p = p_value(-value, -null)  # small distances are the unlikely ones
    curves = float(np.mean(np.abs(a.curve - b.curve)))
    return NetworkDistance(value, float(null.mean()), float(null.std(ddof=1)), p, draws, *sizes, curves, *profiles)


def _permuted_last(geometry: HeadGeometry) -> tuple[int, int, list[float], list[list[float]]]:
    """Return a key that puts the network whose heads are permuted behind the other one.

    It is the network with more heads, then with more depths, because it has more different permutations: those of a
    network with one layer change nothing. Between two networks of one shape the choice is arbitrary. It compares the
    sorted affinities, which are the same for every order of the heads: the p-value would not be valid if the choice
    changed with the permutations. The affinities as they stand decide only between a network and its copy with the
    heads in another order.
    """
    shape = len(geometry.depth), len(np.unique(geometry.depth))
    # Lists compare by the first number that differs.
    return *shape, np.sort(geometry.affinity, axis=None).tolist(), geometry.affinity.tolist()


def profile_difference(a: Floats, b: Floats) -> float:
    """Return the mean |difference| of two score profiles [layers] over relative depth; they may differ in length.

    >>> profile_difference(np.array([0.0, 1.0]), np.array([0.5, 0.5, 0.5]))
    0.25
    """
    grid = np.linspace(0, 1, 65)
    curves = [np.interp(grid, np.linspace(0, 1, len(c)) if len(c) > 1 else np.zeros(1), c) for c in (a, b)]
    return float(np.trapezoid(np.abs(curves[0] - curves[1]), grid))
