"""How far apart two networks of any shape are: fused Gromov–Wasserstein distance of their head geometries.

Null: the heads of one network are permuted, each keeping its affinities and getting the depth of another head.
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
    null_mean: float  # with the heads of one network permuted
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
    """Return the distance of two networks on the same inputs.

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
    a, b = a.subset(HEADS, seed), b.subset(HEADS, seed)
    value = fused_gromov_wasserstein(a.affinity, b.affinity, a.depth, b.depth)
    null = np.empty(draws)
    for draw, rng in enumerate(np.random.default_rng([seed, 5]).spawn(draws)):
        depth = b.depth[rng.permutation(len(b.depth))]
        null[draw] = fused_gromov_wasserstein(a.affinity, b.affinity, a.depth, depth)
    p = p_value(-value, -null)  # small distances are the unlikely ones
    curves = float(np.mean(np.abs(a.curve - b.curve)))
    return NetworkDistance(value, float(null.mean()), float(null.std(ddof=1)), p, draws, *sizes, curves, *profiles)


def profile_difference(a: Floats, b: Floats) -> float:
    """Return the mean |difference| of two score profiles [layers] over relative depth; they may differ in length.

    >>> profile_difference(np.array([0.0, 1.0]), np.array([0.5, 0.5, 0.5]))
    0.25
    """
    grid = np.linspace(0, 1, 65)
    curves = [np.interp(grid, np.linspace(0, 1, len(c)) if len(c) > 1 else np.zeros(1), c) for c in (a, b)]
    return float(np.trapezoid(np.abs(curves[0] - curves[1]), grid))
