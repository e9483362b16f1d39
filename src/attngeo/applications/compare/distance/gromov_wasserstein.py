"""`fused_gromov_wasserstein`: the distance of two sets of heads, by their affinities and their depths.

    FGW² = min over couplings T of  ½ Σ T_ij (z_i − z_j)² + ½ Σ T_ij T_kl (K^A_ik − K^B_jl)²

K are the head affinities, z the relative depths, and both networks give every head the same weight. The problem is not
convex: POT's conditional gradient ends in a local minimum that depends on where it starts. Three couplings that pair
heads by what is known of them are tried, and the best result is improved by exchanging heads.
"""

from __future__ import annotations

import numpy as np

from attngeo.arrays import Floats
from attngeo.errors import AttngeoError

BALANCE = 0.5  # share of the affinities in FGW; the rest is that of the depths
QUANTILES = 32  # of the affinities of a head, by which heads are paired at first
SMALLEST_GAIN = 1e-12  # of an exchange of two heads: below, it may be rounding


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
