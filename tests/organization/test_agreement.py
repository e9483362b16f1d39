"""Agreement of two geometries, compared with SciPy, scikit-learn and direct computation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import procrustes as scipy_procrustes
from scipy.stats import spearmanr

from attngeo.organization import Tree
from attngeo.organization.agreement import (
    adjusted_information,
    agreement,
    closeness_correlation,
    level_agreement,
    procrustes,
    rank_correlation,
)
from tests.organization.random_trees import random_tree


@given(
    n=st.integers(2, 60), a=st.integers(1, 12), b=st.integers(1, 12), seed=st.integers(0, 10**6), nested=st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_adjusted_information_equals_that_of_scikit_learn(n, a, b, seed, nested):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, a, n)
    others = labels // 2 if nested else rng.integers(0, b, n)
    expected = metrics.adjusted_mutual_info_score(labels, others)
    assert adjusted_information(labels, others) == pytest.approx(expected, abs=1e-9)


def test_rank_correlation_and_procrustes_equal_those_of_scipy():
    rng = np.random.default_rng(0)
    a, b = (x @ x.T for x in rng.standard_normal((2, 20, 3)))
    above = np.triu_indices(20, 1)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a[above], b[above]).statistic)
    assert np.isnan(rank_correlation(a, np.ones((20, 20)))) and np.isnan(rank_correlation(a[:1, :1], b[:1, :1]))
    points, others = rng.standard_normal((2, 15, 3))
    assert procrustes(points, others) == pytest.approx(scipy_procrustes(points, others)[2])
    rotated = 3 * points @ np.linalg.qr(rng.standard_normal((3, 3)))[0] + 5
    assert procrustes(points, rotated) == pytest.approx(0, abs=1e-12)
    assert np.isnan(procrustes(points, np.ones((15, 3))))


def test_levels_are_matched_by_number_of_folders():
    tree = random_tree(40, 1)
    own = level_agreement(tree, tree)
    assert all(level.information == pytest.approx(1) and level.folders == level.folders_other for level in own)
    assert [level.folders for level in own] == sorted({w for w in tree.widths if 1 < w < 40})
    repeated_levels = Tree(np.repeat(tree.levels, 2, axis=0))
    assert level_agreement(tree, repeated_levels) == own
    two_levels = Tree([[0] * 40, range(40)])
    with_root = level_agreement(tree, two_levels)
    assert all(level.information == pytest.approx(0, abs=1e-12) and level.folders_other == 1 for level in with_root)
    assert level_agreement(two_levels, tree) == ()
    assert np.isnan(agreement(np.eye(40) + 1, two_levels, np.eye(40) + 1, tree).information)


@given(n=st.integers(3, 40), seed=st.integers(0, 10**6), lopsided=st.booleans())
@settings(max_examples=60, deadline=None)
def test_closeness_correlation_is_the_correlation_over_all_pairs(n, seed, lopsided):
    one, two = random_tree(n, seed, lopsided), random_tree(n, seed + 1)
    pairs = np.triu_indices(n, 1)
    a, b = one.closeness()[pairs], two.closeness()[pairs]
    correlation = closeness_correlation(one, two)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert correlation == (np.ptp(a) == np.ptp(b))
    else:
        assert correlation == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-9)
    assert closeness_correlation(one, one) == 1.0


def test_levels_are_compared_with_those_of_the_nearest_width_on_a_logarithmic_scale():
    four = Tree([[0] * 16, np.arange(16) // 4, range(16)])
    two_and_seven = Tree([[0] * 16, np.arange(16) // 8, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 6, 6], range(16)])
    (level,) = level_agreement(four, two_and_seven)  # 7/4 is nearer to 1 than 4/2
    assert level.information == adjusted_information(four.levels[1], two_and_seven.levels[2])
