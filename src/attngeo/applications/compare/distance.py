"""How far apart two networks of any shape are: fused Gromov–Wasserstein distance of their head geometries.

    FGW² = min over couplings T of  ½ Σ T_ij (z_i − z_j)² + ½ Σ T_ij T_kl (K^A_ik − K^B_jl)²

K are the head affinities, z the relative depths, and both networks give every head the same weight. The problem is not
convex: POT's conditional gradient ends in a local minimum that depends on where it starts. Three couplings that pair
heads by what is known of them are tried, and the best result is improved by exchanging heads.

Null: the heads of one network are permuted, each keeping its affinities and getting the place of another head in the
list of heads, with the depth of that place. If the affinities of this network have nothing to do with depth, the
observed distance and the permuted ones are exchangeable, so that the p-value is valid. Which network is permuted
depends on neither the order in which the two are given nor that of their heads: see `_permuted_last`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attngeo.applications.compare.relation import drawn, p_text, p_value
from attngeo.arrays import Floats
from attngeo.errors import AttngeoError
from attngeo.organization.capture import capture
from attngeo.organization.organize import organize
from attngeo.organization.tensor import NetworkTensor
from attngeo.weights.scoring.score import score

SHARES = np.geomspace(1e-4, 1, 64)  # shares of the coefficients at which sparsity curves are compared
DRAWS, HEADS = 99, 128  # at most HEADS heads of each network, a seeded choice
BALANCE = 0.5  # share of the affinities in FGW; the rest is that of the depths
QUANTILES = 32  # of the affinities of a head, by which heads are paired at first
SMALLEST_GAIN = 1e-12  # of an exchange of two heads: below, it may be rounding


@dataclass(frozen=True, eq=False)
class HeadGeometry:
    """The heads of one network on one or several inputs.

    >>> rng = np.random.default_rng(0)
    >>> heads = [f"L{layer}H{head}" for layer in range(3) for head in range(2)]
    >>> network = NetworkTensor(rng.normal(size=(8, 8, 6)), heads=heads)
    >>> HeadGeometry.of([network]).depth.round(2).tolist()
    [0.17, 0.17, 0.5, 0.5, 0.83, 0.83]
    """

    affinity: Floats  # [H, H], mean over the inputs
    depth: Floats  # [H], (layer + ½) / number of layers
    curve: Floats  # [64], best-n-term error at SHARES, mean over the inputs

    @classmethod
    def of(cls, networks: Sequence[NetworkTensor]) -> HeadGeometry:
        """Organise each network and return the geometry of its heads."""
        organized = [organize(network) for network in networks]
        affinity = np.mean([one.affinities[2] for one in organized], axis=0)
        found = [one.expand().sparsity for one in organized]
        curve = np.mean([np.interp(SHARES, one.counts / one.counts[-1], one.errors) for one in found], axis=0)
        return cls(affinity, _depths(networks[0].heads), curve)

    @classmethod
    def captured(cls, ref: Any, inputs: Any, **options: Any) -> HeadGeometry:
        """Run a model on the inputs and return the geometry of its heads; options: of `capture`."""
        networks = capture(ref, inputs, **options)
        return cls.of([networks] if isinstance(networks, NetworkTensor) else networks)

    def subset(self, count: int, seed: int) -> HeadGeometry:
        """Return a seeded choice of at most `count` heads."""
        if len(self.depth) <= count:
            return self
        chosen = np.sort(np.random.default_rng([seed, 4]).choice(len(self.depth), count, replace=False))
        return HeadGeometry(self.affinity[np.ix_(chosen, chosen)], self.depth[chosen], self.curve)


def _depths(labels: Sequence[str]) -> Floats:
    """Return the relative depth of heads labelled "L3H7"."""
    layers = np.array([int(label[1:].partition("H")[0]) for label in labels])
    return np.asarray((layers + 0.5) / (layers.max() + 1))


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
) -> NetworkDistance:
    """Return the distance of two networks on the same inputs; it and its p-value are the same in both orders.

    >>> rng = np.random.default_rng(0)
    >>> affinity = np.exp(-abs(rng.normal(size=6)[:, None] - rng.normal(size=6)))
    >>> geometry = HeadGeometry((affinity + affinity.T) / 2, np.arange(6) / 6, np.ones(64))
    >>> network_distance(geometry, geometry).value
    0.0
    """
    sizes = len(a.depth), len(b.depth)
    kept, permuted = sorted((a.subset(HEADS, seed), b.subset(HEADS, seed)), key=_permuted_last)

    def distance(order: Any) -> float:
        """Return the distance after the heads of `permuted` have changed their places."""
        # The affinities are permuted rather than the depths: heads are listed in the order of their depths, the search
        # starts once with the heads paired in this order, and the draws must have this start too.
        affinity = permuted.affinity[order][:, order]  # [n, n]
        return fused_gromov_wasserstein(kept.affinity, affinity, kept.depth, permuted.depth)

    heads = len(permuted.depth)
    value = distance(slice(None))
    null = drawn(lambda rng: distance(rng.permutation(heads)), draws, [seed, 5], cost=0)
    p = p_value(-value, -null)  # small distances are the unlikely ones
    curves = float(np.mean(np.abs(a.curve - b.curve)))
    return NetworkDistance(value, float(null.mean()), float(null.std(ddof=1)), p, draws, *sizes, curves)


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


def with_profiles(distance: NetworkDistance, a: Any, b: Any, **options: Any) -> NetworkDistance:
    """Return the distance with the differences of the score profiles, None where several stacks could be meant.

    options: of `score`
    """
    import polars as pl

    profiles = []
    for ref in (a, b):
        frame = score(ref, heads=False, nulls=False, folded=False, **options).frame
        layers = frame.filter(~pl.col("cross")).drop_nulls(["symmetry", "directionality"])
        if layers["stack"].n_unique() != 1:
            return distance
        profiles.append(layers)
    symmetry, directionality = (
        profile_difference(*(layers[name].to_numpy() for layers in profiles)) for name in ("symmetry", "directionality")
    )
    return replace(distance, symmetry=symmetry, directionality=directionality)


def profile_difference(a: Floats, b: Floats) -> float:
    """Return the mean |difference| of two score profiles [layers] over relative depth; they may differ in length.

    >>> profile_difference(np.array([0.0, 1.0]), np.array([0.5, 0.5, 0.5]))
    0.25
    """
    grid = np.linspace(0, 1, 65)
    curves = [np.interp(grid, np.linspace(0, 1, len(c)) if len(c) > 1 else np.zeros(1), c) for c in (a, b)]
    return float(np.trapezoid(np.abs(curves[0] - curves[1]), grid))


def fused_gromov_wasserstein(affinity_a: Floats, affinity_b: Floats, depth_a: Floats, depth_b: Floats) -> float:
    """Return FGW of two affinities [n_a, n_a], [n_b, n_b] with depths [n_a], [n_b].

    >>> affinity, depth = np.array([[1.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 1.0]]), np.array([0.2, 0.5, 0.8])
    >>> order = [2, 0, 1]
    >>> fused_gromov_wasserstein(affinity, affinity[np.ix_(order, order)], depth, depth[order])
    0.0
    """
    try:
        from ot import emd, unif
        from ot.gromov import fused_gromov_wasserstein as solve
    except ImportError:
        raise AttngeoError("the distance of two networks needs POT: pip install 'attngeo[compare]'") from None
    if len(depth_a) > len(depth_b):  # the smaller network first: both orders then end in the same local minimum
        affinity_a, affinity_b, depth_a, depth_b = affinity_b, affinity_a, depth_b, depth_a
    p, q = unif(len(depth_a)), unif(len(depth_b))
    depths = np.square(depth_a[:, None] - depth_b)  # [n_a, n_b]
    rows = _row_distances(affinity_a, affinity_b)  # [n_a, n_b]
    # Two runs of one model have the same heads in the same order.
    order = np.square((np.cumsum(p) - p / 2)[:, None] - (np.cumsum(q) - q / 2))  # [n_a, n_b]
    options = {"alpha": BALANCE, "symmetric": True, "log": True, "max_iter": 200, "tol_rel": 1e-7}
    found = [
        solve(depths, affinity_a, affinity_b, p, q, G0=emd(p, q, cost), **options)
        for cost in (order, rows, depths + rows)
    ]
    coupling = min(found, key=lambda result: float(result[1]["fgw_dist"]))[0]
    coupling = exchange_heads(coupling, affinity_a, affinity_b, depths)
    if len(p) != len(q):  # with as many heads on both sides, exchanging those of one side is enough
        coupling = exchange_heads(coupling.T, affinity_b, affinity_a, depths.T).T
    squared = _value(coupling, affinity_a, affinity_b, depths)
    return squared**0.5 if squared > 1e-14 else 0.0  # below: rounding of a difference of sums of order 1


def exchange_heads(coupling: Floats, affinity_a: Floats, affinity_b: Floats, depths: Floats) -> Floats:
    """Return the coupling after exchanges of two heads of B, the best one first, until none lowers the value (2-opt).

    With M = Tᵀ K^A T and c = Tᵀ D, where D are the squared differences of depths, the value is a constant plus
    ½ Σ_j c_jj − Σ_jl M_jl K^B_jl. To exchange two heads of B is to exchange two columns of T.
    """
    order = np.arange(len(affinity_b))
    moved = coupling.T @ affinity_a @ coupling  # M [n_b, n_b]
    cost = coupling.T @ depths  # c [n_b, n_b]
    b = np.diag(affinity_b)
    while True:
        product = moved @ affinity_b  # [n_b, n_b]
        a = np.diag(moved)
        # What Σ M K gains where the heads r and s are exchanged: Σ_k (M_rk − M_sk)(K_sk − K_rk) counts every k but r
        # and s twice, because M and K are symmetric.
        all_k = -_loss_of_exchange(product)
        k_is_r = (a[:, None] - moved) * (affinity_b - b[:, None])
        gain = 2 * (all_k - k_is_r - k_is_r.T) + (a[:, None] - a) * (b - b[:, None])
        change = -(1 - BALANCE) * _loss_of_exchange(cost) - 2 * BALANCE * gain  # [n_b, n_b]
        r, s = divmod(int(change.argmin()), len(order))
        if change[r, s] > -SMALLEST_GAIN:
            return coupling[:, order]
        order[[r, s]] = order[[s, r]]
        cost[[r, s]] = cost[[s, r]]
        moved[[r, s]] = moved[[s, r]]
        moved[:, [r, s]] = moved[:, [s, r]]


def _loss_of_exchange(terms: Floats) -> Floats:
    """Return x_rr + x_ss − x_rs − x_sr for all r and s: by how much a trace falls where two columns are exchanged."""
    own = np.diag(terms)
    return own[:, None] + own - terms - terms.T


def _row_distances(affinity_a: Floats, affinity_b: Floats) -> Floats:
    """Return the mean squared differences [n_a, n_b] between the quantiles of each row of two affinities.

    How the affinities of a head are distributed does not depend on the order of the other heads. The difference of the
    quantiles is the Wasserstein distance of the two distributions, and the best coupling for it gives Mémoli's third
    lower bound of the Gromov–Wasserstein distance.

    >>> _row_distances(np.array([[1.0, 0.2], [0.2, 1.0]]), np.array([[1.0]])).round(2).tolist()
    [[0.27], [0.27]]
    """
    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    a, b = (np.quantile(affinity, levels, axis=1, method="hazen") for affinity in (affinity_a, affinity_b))
    distances: Floats = np.square(a[:, :, None] - b[:, None, :]).mean(0)  # [QUANTILES, n_a, n_b] → [n_a, n_b]
    return distances


def _value(coupling: Floats, affinity_a: Floats, affinity_b: Floats, depths: Floats) -> float:
    """Return the value of one coupling [n_a, n_b]; the marginals of both sides are uniform."""
    squares = np.square(affinity_a).mean() + np.square(affinity_b).mean()
    products = np.sum(coupling * (affinity_a @ coupling @ affinity_b))
    return float((1 - BALANCE) * np.sum(coupling * depths) + BALANCE * (squares - 2 * products))
