"""The Gaussian null, compared with scores of random factors at full size, and its cache."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.engine import score_forms
from attngeo.weights.scoring.formulas import directionality, dominance, row_norms
from attngeo.weights.scoring.gaussian_null import DRAWS, GaussianNull, gaussian_null, rotary_null
from attngeo.weights.scoring.rotary import rotary_average


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "cache"))
    gaussian_null.cache_clear()
    yield tmp_path / "cache"
    gaussian_null.cache_clear()


def assert_null_agrees(d: int, r: int, count: int) -> None:
    """Compare the null with scores of random forms: means, standard deviations, distribution."""
    rng = np.random.default_rng(7)
    scores = [score_forms(*rng.standard_normal((2, d, r))) for _ in range(count)]
    symmetry, directionality = (np.array([getattr(s, name) for s in scores]) for name in ("symmetry", "directionality"))
    null = gaussian_null(d, d, r)
    spread = symmetry.std(ddof=1)
    assert abs(symmetry.mean() - 1 / d) < 4 * spread / np.sqrt(count)
    # The relative error of a standard deviation from n draws is 1/√(2n); both sides are drawn, symmetry ≥ 400 times.
    error = np.sqrt(1 / (2 * count) + 1 / (2 * 400))
    assert abs(np.log(null.symmetry_std / spread)) < 4 * error
    ours, full_size = null.directionality, directionality
    assert abs(np.log(ours.std() / full_size.std())) < 4 * error
    # The Kolmogorov-Smirnov distance, at the level 1e-4.
    grid = np.sort(np.concatenate([ours, full_size]))
    gap = np.abs(
        np.searchsorted(np.sort(ours), grid, "right") / DRAWS
        - np.searchsorted(np.sort(full_size), grid, "right") / count
    )
    assert gap.max() < 2.23 * np.sqrt(1 / DRAWS + 1 / count)


@pytest.mark.parametrize(("d", "r"), [(64, 8), (64, 256), (96, 96), (384, 32)])
def test_the_null_agrees_with_random_forms(d, r):
    assert_null_agrees(d, r, 400)


@pytest.mark.parametrize(("d_query", "d_key", "r"), [(64, 64, 1), (64, 64, 2), (64, 16, 8)])
def test_p_values_of_small_random_forms_are_calibrated(d_query, d_key, r):
    rng, count = np.random.default_rng(11), 8000
    query, key = rng.standard_normal((count, d_query, r)), rng.standard_normal((count, d_key, r))
    grams = [w.swapaxes(1, 2) @ w for w in (query, key)]  # [count, r, r]
    found = directionality(row_norms(query, grams[1]), row_norms(key, grams[0]))  # [count]
    null = gaussian_null(d_query, d_key, r)
    p = np.array([null.directionality_p(score) for score in found])
    assert found.std() == pytest.approx(null.directionality.std(), rel=0.05)
    for level in (0.05, 0.1):  # the null has 999 draws, so that its own quantiles vary
        assert abs(np.mean(p <= level) - level) < 3 * np.sqrt(level * (1 - level) / DRAWS)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "r"), [(384, 384), (1024, 64), (1024, 256), (4096, 128)])
def test_the_null_agrees_with_large_random_forms(d, r):
    assert_null_agrees(d, r, 200)


@pytest.mark.parametrize(
    ("d", "groups", "pairs", "fixed", "count", "factor"),
    [
        (64, 1, 4, 0, 1000, 1.0),
        (64, 1, 2, 4, 1000, 1.0),
        (64, 4, 8, 0, 500, 1.0),
        (96, 4, 4, 8, 300, 1.0),
        (64, 1, 4, 0, 1000, 1.4),
        (64, 1, 12, 8, 1000, 1.4),
        (96, 4, 4, 8, 300, 1.4),
    ],
)
def test_the_null_under_rotation_agrees_with_random_forms(d, groups, pairs, fixed, count, factor):
    """For heads and for layers, rotated wholly or in part, with and without an attention factor."""
    rng = np.random.default_rng(3)
    rotary = RotaryPairs.halves(np.arange(1, pairs + 1) / 10, factor=factor)
    query, key = rng.standard_normal((2, count, d, groups * (2 * pairs + fixed)), dtype=np.float32)
    average = rotary_average(query, key, rotary, groups)
    null = rotary_null(d, d, groups, pairs, fixed, factor)
    spread, error = average.symmetry.std(), np.sqrt(1 / (2 * count))
    assert abs(average.symmetry.mean() - null.symmetry_mean) < 4 * spread / np.sqrt(count)
    assert abs(np.log(null.symmetry_std / spread)) < 4 * error
    direction = directionality(average.rows, average.columns)
    assert abs(np.log(null.directionality_std / direction.std())) < 4 * np.sqrt(error**2 + 1 / (2 * DRAWS))
    assert null.z("symmetry", null.symmetry_mean - 2 * null.symmetry_std) == pytest.approx(-2)


def test_without_rotating_pairs_the_null_is_nearly_the_plain_one():
    still, plain = rotary_null(64, 64, 1, 0, 8), gaussian_null(64, 64, 8)
    assert still.symmetry_mean == plain.symmetry_mean == 1 / 64
    assert still.symmetry_std == pytest.approx(plain.symmetry_std, rel=0.1)
    assert still.directionality_std == pytest.approx(plain.directionality_std, rel=0.1)
    assert np.isnan(rotary_null(64, 32, 1, 2, 4).symmetry_mean)


@pytest.mark.parametrize(("d_query", "d_key", "r"), [(64, 64, 8), (200, 50, 8), (16, 400, 8), (384, 384, 16)])
def test_the_null_of_the_dominance_agrees_with_random_forms(d_query, d_key, r):
    rng, count = np.random.default_rng(5), 400
    query, key = rng.standard_normal((count, d_query, r)), rng.standard_normal((count, d_key, r))
    found = dominance(row_norms(query, key.swapaxes(1, 2) @ key), row_norms(key, query.swapaxes(1, 2) @ query))
    null = gaussian_null(d_query, d_key, r)
    assert abs(found.mean() - null.dominance_mean) < 4 * found.std() * np.sqrt(1 / count + 1 / DRAWS)
    assert abs(np.log(null.dominance_std / found.std())) < 4 * np.sqrt(1 / (2 * count) + 1 / (2 * DRAWS))
    if d_query == d_key:
        assert null.dominance_mean == 0 and null.dominance_std == pytest.approx(d_query**-0.5, rel=0.1)
    assert null.z("dominance", null.dominance_mean + null.dominance_std) == pytest.approx(1)


def test_the_standard_deviation_of_the_symmetry_falls_with_the_width():
    scaled = [gaussian_null(d, d, d // 8).symmetry_std * d for d in (64, 512, 4096)]
    assert scaled == pytest.approx([2**0.5] * 3, rel=0.15)


def test_z_and_p_of_a_directionality():
    null = GaussianNull(0.1, 0.1, np.array([-0.3, -0.1, 0.1, 0.3]), 0.0)
    assert null.directionality_p(0.0) == 1
    assert null.directionality_p(-0.2) == 3 / 5
    assert null.directionality_p(0.9) == 1 / 5
    assert null.z("directionality", -np.sqrt(0.05)) == pytest.approx(-1)
    assert np.isnan(null.directionality_p(float("nan")))
    assert np.isnan(GaussianNull(1.0, 0.0, np.zeros(4), 0.0).z("symmetry", 1.0))  # forms of width 1


def test_forms_with_two_widths_have_no_symmetry_and_a_centre_other_than_0():
    null = gaussian_null(200, 50, 8)
    assert np.isnan(null.symmetry_mean)
    assert null.centre == pytest.approx(null.directionality.mean())
    assert null.centre > 0.2  # four times as many rows as columns: R is about 2 C
    assert gaussian_null(50, 200, 8).centre < -0.2


def test_forms_too_small_for_any_excess_have_no_z():
    null = gaussian_null(4, 4, 2)
    assert not null.directionality.any()
    assert np.isnan(null.z("directionality", 0.0))
    assert null.directionality_p(0.0) == 1


def test_the_null_is_the_same_at_every_call(cache):
    first = gaussian_null(40, 40, 8)
    gaussian_null.cache_clear()
    from_disk = gaussian_null(40, 40, 8)
    assert np.array_equal(from_disk.directionality, first.directionality)
    (file,) = (cache / "nulls").iterdir()
    file.unlink()
    gaussian_null.cache_clear()
    drawn_again = gaussian_null(40, 40, 8)
    assert np.array_equal(drawn_again.directionality, first.directionality)
    assert drawn_again.symmetry_std == first.symmetry_std


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:200]),
        lambda file: np.save(file, np.ones(3)),
    ],
)
def test_a_damaged_cache_is_drawn_again(cache, damage):
    first = gaussian_null(40, 40, 8)
    (file,) = (cache / "nulls").iterdir()
    good = file.read_bytes()
    damage(file)
    gaussian_null.cache_clear()
    assert np.array_equal(gaussian_null(40, 40, 8).directionality, first.directionality)
    assert file.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("ATTNGEO_CACHE", str(blocked))
    assert len(gaussian_null(40, 40, 8).directionality) == DRAWS
    assert blocked.read_text() == "in the way"


@pytest.mark.slow
def test_the_null_of_many_heads_on_narrow_vectors_takes_little_memory():
    """T5-11B has 128 heads of size 128 on vectors of width 1024: r is 16 d, and the reduced factors are [1024, 64]."""
    tracemalloc.start()
    std = gaussian_null(1024, 1024, 16384).symmetry_std
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400 * 1024 * 1024 * 4 / 2  # half of one array of r×r products at the reduced rank
    assert std == pytest.approx(math.sqrt(2) / 1024, rel=0.15)  # the limit of a Gaussian M, of which r > d comes near
