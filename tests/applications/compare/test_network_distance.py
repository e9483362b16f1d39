"""The fused Gromov–Wasserstein distance of head geometries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attngeo.applications.compare.distance import (
    HeadGeometry,
    fused_gromov_wasserstein,
    network_distance,
)

pytest.importorskip("ot")


def geometry(position: np.ndarray, depth: np.ndarray | None = None) -> HeadGeometry:
    """Return heads whose affinity falls with the distance of their positions."""
    affinity = np.exp(-np.abs(position[:, None] - position))
    depth = (np.arange(len(position)) + 0.5) / len(position) if depth is None else depth
    return HeadGeometry(affinity, depth, np.linspace(1, 0, 64))


def test_the_distance_is_zero_for_a_network_and_its_copy_in_another_order():
    rng = np.random.default_rng(0)
    a = geometry(rng.normal(size=12))
    order = rng.permutation(12)
    b = HeadGeometry(a.affinity[np.ix_(order, order)], a.depth[order], a.curve)
    assert network_distance(a, b, draws=19).value == pytest.approx(0, abs=1e-6)


def test_the_distance_of_two_pairs_is_the_closed_form():
    # two heads each, at the same depth, with affinities 0.3 and 0.8 off the diagonal
    depth = np.full(2, 0.5)
    affinities = [np.array([[1, value], [value, 1]]) for value in (0.3, 0.8)]
    expected = (0.5 * 2 * 0.25 * 0.5**2) ** 0.5
    assert fused_gromov_wasserstein(*affinities, depth, depth) == pytest.approx(expected, rel=1e-3)


def test_the_distance_is_symmetric_and_grows_with_the_difference():
    rng = np.random.default_rng(1)
    position = np.sort(rng.normal(size=10))
    a = geometry(position)
    near, far = (geometry(position + size * rng.normal(size=10)) for size in (0.1, 2))
    assert network_distance(a, near, draws=9).value < network_distance(a, far, draws=9).value
    for other in (far, *(geometry(rng.normal(size=count)) for count in range(11, 24))):  # as many heads, and more
        pairs = (a, other), (other, a)
        there, back = (fused_gromov_wasserstein(x.affinity, y.affinity, x.depth, y.depth) for x, y in pairs)
        assert there == pytest.approx(back, rel=1e-9)


def test_permuted_heads_are_further_apart_where_affinity_follows_depth():
    a, b = geometry(np.linspace(0, 3, 14)), geometry(np.linspace(0, 3, 9))
    found = network_distance(a, b, draws=39)
    assert found.p_value == 1 / 40 and found.value < found.null_mean - 3 * found.null_std
    assert (found.heads_a, found.heads_b, found.draws) == (14, 9, 39)
    assert "geometries of 14 and 9 heads" in found.sentence() and "p ≤ 0.025" in found.sentence()


@pytest.mark.parametrize("sizes", [(12, 12), (9, 14), None])
@pytest.mark.parametrize("seed", range(3))
def test_the_p_value_is_the_same_in_both_orders(sizes, seed):
    rng = np.random.default_rng(seed)
    a, b = (geometry(rng.normal(size=n), (np.arange(n) // 3 + 0.5) / -(-n // 3)) for n in sizes or (12, 12))
    if sizes is None:  # a copy with other heads in each layer
        order = np.lexsort((rng.random(12), a.depth))
        b = replace(a, affinity=a.affinity[np.ix_(order, order)])
    there, back = network_distance(a, b, draws=39, seed=seed), network_distance(b, a, draws=39, seed=seed)
    assert there == replace(back, heads_a=back.heads_b, heads_b=back.heads_a)
    assert (there.heads_a, there.heads_b) == (sizes or (12, 12)) and (there.value == 0) == (sizes is None)


@pytest.mark.parametrize("networks", [80, pytest.param(300, marks=pytest.mark.slow)])
def test_the_p_value_of_unrelated_networks_is_uniform(networks):
    rng = np.random.default_rng(0)
    pairs = [[geometry(rng.normal(size=7)) for _ in range(2)] for _ in range(networks)]
    found = np.array([network_distance(*pair, draws=9).p_value for pair in pairs])
    for level in (0.1, 0.2, 0.5):
        share = np.mean(found <= level + 1e-9)
        assert abs(share - level) < 3 * (level * (1 - level) / len(found)) ** 0.5


@pytest.mark.parametrize("seed", range(3))
def test_heads_of_two_runs_are_no_further_apart_than_in_their_own_order(seed):
    """Heads of one layer have one depth, so that depths alone cannot pair the heads of a model with their own."""
    rng = np.random.default_rng(seed)
    position = rng.normal(size=(16, 2))
    affinities = [
        np.exp(-np.linalg.norm(moved[:, None] - moved, axis=2))
        for moved in (position, position + 0.3 * rng.normal(size=(16, 2)))
    ]
    depth = (np.arange(16) // 4 + 0.5) / 4
    in_order = (0.5 * np.square(affinities[0] - affinities[1]).mean()) ** 0.5
    assert fused_gromov_wasserstein(*affinities, depth, depth) <= in_order * (1 + 1e-6)


def test_the_distance_is_smaller_than_from_many_random_starts():
    """In the mean over random problems the distance is below the smallest of 40 random starts without exchanges."""
    ot = pytest.importorskip("ot")
    rng = np.random.default_rng(0)
    options = {"alpha": 0.5, "symmetric": True, "max_iter": 200, "tol_rel": 1e-7}
    ratios = []
    for _ in range(30):
        sizes = rng.integers(6, 20, 2)
        positions = [rng.normal(size=(n, 2)) for n in sizes]
        affinities = [np.exp(-np.linalg.norm(x[:, None] - x, axis=2)) for x in positions]
        depths = [(np.arange(n) * 4 // n + 0.5) / 4 for n in sizes]
        cost, (p, q) = np.square(depths[0][:, None] - depths[1]), (np.full(n, 1 / n) for n in sizes)
        starts = [ot.emd(p, q, rng.random(cost.shape)) for _ in range(40)]
        many = [ot.gromov.fused_gromov_wasserstein2(cost, *affinities, p, q, G0=one, **options) for one in starts]
        ratios.append(fused_gromov_wasserstein(*affinities, *depths) / min(many) ** 0.5)
    assert np.mean(ratios) < 1.0
