"""Softmax invariance: the figures against other implementations, and on tensors where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import procrustes as scipy_procrustes
from scipy.stats import spearmanr

from attngeo.errors import InputError
from attngeo.organization import NetworkTensor, Tree, planted, softmax_invariance
from attngeo.organization.capture.network_tensor import softmax
from attngeo.organization.geometry.agreement import agreement, procrustes, rank_correlation
from attngeo.organization.geometry.tree_agreement import adjusted_information, level_agreement
from tests.organization.made_arrays import random_tree


@given(
    n=st.integers(2, 60), a=st.integers(1, 12), b=st.integers(1, 12), seed=st.integers(0, 10**6), alike=st.booleans()
)
@settings(max_examples=150, deadline=None)
def test_adjusted_information_is_sklearns(n, a, b, seed, alike):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, a, n)
    others = labels // 2 if alike else rng.integers(0, b, n)
    wanted = metrics.adjusted_mutual_info_score(labels, others)
    assert adjusted_information(labels, others) == pytest.approx(wanted, abs=1e-9)


def test_rank_correlation_and_procrustes_are_scipys():
    rng = np.random.default_rng(0)
    a, b = (x @ x.T for x in rng.standard_normal((2, 20, 3)))
    above = np.triu_indices(20, 1)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a[above], b[above]).statistic)
    assert np.isnan(rank_correlation(a, np.ones((20, 20)))) and np.isnan(rank_correlation(a[:1, :1], b[:1, :1]))
    points, others = rng.standard_normal((2, 15, 3))
    assert procrustes(points, others) == pytest.approx(scipy_procrustes(points, others)[2])
    turned = 3 * points @ np.linalg.qr(rng.standard_normal((3, 3)))[0] + 5
    assert procrustes(points, turned) == pytest.approx(0, abs=1e-12)
    assert np.isnan(procrustes(points, np.ones((15, 3))))


def test_levels_are_matched_by_number_of_folders():
    tree = random_tree(40, 1)
    own = level_agreement(tree, tree)
    assert all(level.information == pytest.approx(1) and level.folders == level.folders_other for level in own)
    assert [level.folders for level in own] == sorted({w for w in tree.widths if 1 < w < 40})
    # A level repeated changes nothing.
    assert level_agreement(tree, Tree(np.repeat(tree.levels, 2, axis=0))) == own
    bare = Tree([[0] * 40, range(40)])
    assert all(level.information == pytest.approx(0, abs=1e-12) for level in level_agreement(tree, bare))
    assert level_agreement(bare, tree) == ()
    assert np.isnan(agreement(np.eye(40) + 1, bare, np.eye(40) + 1, tree).information)


@pytest.fixture(scope="module")
def report():
    array, _ = planted((64, 64, 24), 0)
    return softmax_invariance(array, bootstrap=300)


def test_planted_tensors_beat_the_broken_control(report):
    assert all(contrast.beats_control for contrast in report.contrasts), str(report)
    for contrast in report.contrasts:
        assert contrast.low <= contrast.high


def test_the_residual_is_smoother_than_the_logits(report):
    gains = [head.residual.exponent - head.exponent.exponent for head in report.heads]
    assert np.mean(gains) > 0.2 and np.mean(np.asarray(gains) > 0) > 0.9


def test_the_report_reads_well(report):
    assert len(report.heads) == len(report.heads_broken) == len(report.rows()) == 24
    assert report.comparison == "softmax" and len(report.network) == len(report.network_broken) == 3
    text = str(report)
    assert all(contrast.figure in text for contrast in report.contrasts) and "not better than the control" not in text
    level = report.network[2].levels[0]
    assert f"{level.folders},{level.folders_other}: {level.information:.2f}" in text
    shown = report["keys: tree information"]
    assert shown.value == pytest.approx(np.mean([head.keys.information for head in report.heads]))
    assert report.rows()[3]["head"] == "3"


def test_a_tensor_that_the_softmax_cannot_touch_agrees_fully():
    """Logits so small that the softmax is affine in them: the trees must be the same."""
    array, _ = planted((40, 40, 10), 2)
    array = 1e-6 * (array - array.mean(1, keepdims=True))
    report = softmax_invariance(array, heads=[0, 4], bootstrap=50)
    for side in (report.network[2], report.heads[0].keys, report.heads[1].queries):
        assert side.rank_correlation > 0.999 and side.information > 0.98 and side.procrustes < 1e-3


def test_masked_comparison_uses_the_mask():
    array, _ = planted((24, 24, 6), 1)
    mask = np.tril(np.ones((24, 24), bool))
    tensor = NetworkTensor(array, mask, heads=tuple(f"L0H{h}" for h in range(6)))
    masked = tensor.probabilities(masked=True)
    assert (masked[~mask] == 0).all()
    np.testing.assert_allclose(masked.sum(1), 1)
    np.testing.assert_allclose(masked[3, :4, 2], softmax(tensor.values[3:4, :4, 2])[0], rtol=1e-12)
    seen = []
    report = softmax_invariance(
        tensor, masked=True, heads=[1], bootstrap=20, progress=lambda done, total: seen.append((done, total))
    )
    assert report.comparison == "masked softmax" and report.heads[0].head == "L0H1"
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    plain = softmax_invariance(tensor, heads=[1], bootstrap=20)
    assert plain.comparison == "softmax" and plain.network != report.network


def test_same_seed_same_report():
    array, _ = planted((16, 16, 6), 0)
    first, second = (softmax_invariance(array, bootstrap=20, seed=5) for _ in range(2))
    assert first.contrasts == second.contrasts and first.network_broken == second.network_broken
    assert softmax_invariance(array, bootstrap=20, seed=6).network_broken != first.network_broken


def test_bad_input_says_why():
    array = np.random.default_rng(0).random((5, 5, 3))
    for call, says in (
        (lambda: softmax_invariance(array[0]), "expected 3-D"),
        (lambda: softmax_invariance(array, masked=True), "no mask"),
        (lambda: softmax_invariance(NetworkTensor(array), masked=True), "no mask"),
        (lambda: softmax_invariance(NetworkTensor(array, stage="probabilities")), "expected logits"),
        (lambda: softmax_invariance(array, heads=[3]), "among 0 … 2"),
        (lambda: softmax_invariance(array, heads=[]), "among 0 … 2"),
    ):
        with pytest.raises(InputError, match=says):
            call()
