"""Softmax invariance on tensors for which the answer is known, and its report."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from attngeo.errors import InputError
from attngeo.organization import NetworkTensor, planted, softmax_invariance
from attngeo.organization.agreement import level_agreement, mean_information
from attngeo.organization.grow import flexible_tree
from attngeo.organization.invariance import _information_error, half_samples, head_contrasts
from attngeo.organization.tensor import softmax


@pytest.fixture(scope="module")
def report():
    array, _ = planted((40, 40, 12), 0)
    return softmax_invariance(array, bootstrap=100)


def test_planted_tensors_agree_better_than_the_control(report):
    assert all(contrast.beats_control for contrast in report.contrasts), str(report)
    for contrast in report.contrasts:
        assert contrast.low <= contrast.high
        if not contrast.figure.startswith("heads"):  # the interval of a mean over heads holds their own mean
            better = (contrast.value - contrast.control) * (-1 if "Procrustes" in contrast.figure else 1)
            assert contrast.low < better < contrast.high


def test_the_residual_is_smoother_than_the_logits(report):
    gains = [head.residual.exponent - head.exponent.exponent for head in report.heads]
    assert np.mean(gains) > 0.2 and np.mean(np.asarray(gains) > 0) > 0.9


def test_the_report_shows_every_figure(report):
    assert len(report.heads) == len(report.heads_control) == len(report.rows()) == 12
    assert report.comparison == "softmax" and len(report.network) == len(report.network_control) == 3
    text = str(report)
    assert all(contrast.figure in text for contrast in report.contrasts) and "✗" not in text
    assert max(len(line) for line in text.splitlines() if "  " in line) <= 80  # rows of the tables
    level = report.network[2].levels[0]
    assert f"{level.folders},{level.folders_other}: {level.information:.2f}" in text
    shown = report["keys: tree information"]
    assert shown.value == pytest.approx(np.mean([head.keys.information for head in report.heads]))
    row, head, control = report.rows()[3], report.heads[3], report.heads_control[3]
    assert row["head"] == "3" and row["exponent"] == head.exponent.exponent
    assert row["residual exponent"] == head.residual.exponent
    assert row["residual exponent, control"] == control.residual.exponent
    assert row["keys: Procrustes"] == head.keys.procrustes
    assert row["queries: tree information, control"] == control.queries.information


def test_logits_on_which_the_softmax_is_affine_agree_fully():
    """On very small logits the softmax is affine, so it preserves the trees."""
    array, _ = planted((40, 40, 10), 2)
    array = 1e-6 * (array - array.mean(1, keepdims=True))
    report = softmax_invariance(array, heads=[0, 4], bootstrap=50)
    for side in (report.network[2], report.heads[0].keys, report.heads[1].queries):
        assert side.rank_correlation > 0.999 and side.information > 0.98 and side.procrustes < 1e-3


def test_the_masked_comparison_uses_the_mask():
    array, _ = planted((24, 24, 6), 1)
    mask = np.tril(np.ones((24, 24), bool))
    tensor = NetworkTensor(array, mask, heads=tuple(f"L0H{h}" for h in range(6)))
    masked = tensor.probabilities(masked=True)
    assert (masked[~mask] == 0).all()
    np.testing.assert_allclose(masked.sum(1), 1)
    np.testing.assert_allclose(masked[3, :4, 2], softmax(tensor.values[3:4, :4, 2])[0], rtol=1e-12)
    calls = []
    report = softmax_invariance(
        tensor, masked=True, heads=[1], bootstrap=40, progress=lambda done, total: calls.append((done, total))
    )
    assert report.comparison == "masked softmax" and report.heads[0].head == "L0H1"
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    unmasked = softmax_invariance(tensor, heads=[1], bootstrap=40)
    assert unmasked.comparison == "softmax" and unmasked.network != report.network


@pytest.mark.parametrize("n", [10, 24, 100])
def test_the_spread_over_half_samples_is_the_standard_error(n):
    """An interval from all heads that are drawn at least once would have 0.76 of the width."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=n)
    means = [numbers[drawn].mean() for drawn in half_samples(n, 4000, rng)]
    assert np.std(means) == pytest.approx(numbers.std(ddof=1) / n**0.5, rel=0.05)
    assert all(len(set(drawn.tolist())) == n // 2 for drawn in half_samples(n, 3, rng))


def test_the_standard_error_of_tree_information_is_its_spread_over_networks():
    """Networks of 24 heads in six clusters."""
    rng = np.random.default_rng(0)

    def affinity(points):
        distances = np.linalg.norm(points[:, None] - points, axis=-1)
        return np.exp(-((distances / np.median(distances)) ** 2))

    values, errors = [], []
    for _ in range(80):
        points = 3 * np.eye(6)[rng.integers(0, 6, 24)] + 0.6 * rng.normal(size=(24, 6))
        noisy = [points + noise * rng.normal(size=points.shape) for noise in (0.7, 1.2)]
        affinities = [affinity(cloud) for cloud in (points, *noisy)]
        tree, after, control = map(flexible_tree, affinities)
        own, of_control = (mean_information(level_agreement(tree, other)) for other in (after, control))
        values.append(own - of_control)
        errors.append(_information_error(*affinities, half_samples(24, 4, rng)))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(values, ddof=1), rel=0.2)


def test_the_control_permutes_the_keys_of_each_row():
    """Logits that do not depend on the key stay what they are, whatever differs between queries and heads."""
    array, _ = planted((12, 8), 0)  # [queries, heads]
    report = softmax_invariance(np.repeat(array[:, None], 12, axis=1), heads=[0], bootstrap=0)
    assert report.network == report.network_control


def test_iterations_are_those_of_the_tensor():
    array, _ = planted((24, 20, 8), 3)
    one, three = (softmax_invariance(array, heads=[0], bootstrap=0, iterations=count) for count in (1, 3))
    assert one.network != three.network and one.heads == three.heads


def test_the_same_seed_gives_the_same_report():
    array, _ = planted((16, 16, 6), 0)
    first, second = (softmax_invariance(array, heads=[0, 3], bootstrap=40, seed=5) for _ in range(2))
    assert first.contrasts == second.contrasts and first.network_control == second.network_control
    assert softmax_invariance(array, heads=[0, 3], bootstrap=40, seed=6).network_control != first.network_control


def test_bad_input_raises_an_error_that_names_it():
    array = np.random.default_rng(0).random((5, 5, 3))
    for call, message in (
        (lambda: softmax_invariance(array[0]), "expected 3-D"),
        (lambda: softmax_invariance(array, masked=True), "no mask"),
        (lambda: softmax_invariance(NetworkTensor(array), masked=True), "no mask"),
        (lambda: softmax_invariance(NetworkTensor(array, stage="probabilities")), "expected logits"),
        (lambda: softmax_invariance(array, heads=[3]), "heads: 3, expected whole numbers from 0 to 2"),
        (lambda: softmax_invariance(array, heads=[]), "at least one head"),
        (lambda: softmax_invariance(array, heads=[1, 1]), "each once"),
        (lambda: softmax_invariance(array, heads=[True, False, True]), "heads: True, expected whole numbers"),
        (lambda: softmax_invariance(array, heads=[0.5]), "heads: 0.5, expected whole numbers"),
        (lambda: softmax_invariance(array, bootstrap=39), "bootstrap is 39, expected at least 40 for an interval"),
        (lambda: softmax_invariance(array, seed=-1), "seed is -1, expected a whole number from 0 on"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_a_single_head_has_no_interval():
    array, _ = planted((10, 10, 4), 0)
    one, two = (softmax_invariance(array, heads=heads, bootstrap=40) for heads in ([2], [2, 3]))
    name = "queries: affinity rank correlation"
    assert np.isfinite(one[name].value) and np.isnan([one[name].low, one[name].high]).all()
    assert two[name].low < two[name].high
    line = next(line for line in repr(one).splitlines() if line.startswith(name))
    assert line.endswith("too few for an interval") and "nan" not in repr(one).partition("head trees")[0]


@pytest.mark.parametrize("heads", [4, 16])
def test_the_intervals_of_means_over_few_heads_hold_the_truth(heads):
    """In 95% of samples of heads, the interval of the advantage holds its expectation, here 0."""
    rng = np.random.default_rng(0)

    def sample():
        values = rng.normal(size=heads)
        agreements = [SimpleNamespace(rank_correlation=v, information=v, procrustes=v) for v in values]
        fits = [SimpleNamespace(exponent=v) for v in values]
        return [
            SimpleNamespace(queries=a, keys=a, exponent=f, residual=f) for a, f in zip(agreements, fits, strict=True)
        ]

    found = [head_contrasts(sample(), sample(), 200, rng)[0] for _ in range(400)]
    assert 0.92 < np.mean([contrast.low <= 0 <= contrast.high for contrast in found]) < 0.99
