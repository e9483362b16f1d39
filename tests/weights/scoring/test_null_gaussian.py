"""The Gaussian null, compared with scores of random factors at full size, and its cache."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.weights.scoring import null_gaussian as nulls
from attngeo.weights.scoring.factored import score_forms
from attngeo.weights.scoring.factors import Factors
from attngeo.weights.scoring.null_gaussian import DRAWS, GaussianNull, gaussian_null


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "cache"))
    gaussian_null.cache_clear()
    yield tmp_path / "cache"
    gaussian_null.cache_clear()


def scores_of_random_forms(d: int, r: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return symmetry and directionality of `count` forms with Gaussian factors at full size."""
    rng = np.random.default_rng(7)
    pairs = (rng.standard_normal((2, 1, r, d), dtype=np.float32) for _ in range(count))
    scores = [next(score_forms(Factors(query), Factors(key))) for query, key in pairs]
    return np.array([s.symmetry for s in scores]), np.array([s.directionality for s in scores])


def assert_null_agrees(d: int, r: int, count: int) -> None:
    """Compare the null with scores of random forms: means, standard deviations, distribution."""
    symmetry, directionality = scores_of_random_forms(d, r, count)
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


@pytest.mark.parametrize(("d", "r"), [(64, 8), (96, 96), (384, 32)])
def test_the_null_agrees_with_random_forms(d, r):
    assert_null_agrees(d, r, 400)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "r"), [(384, 384), (1024, 64), (1024, 256), (4096, 128)])
def test_the_null_agrees_with_large_random_forms(d, r):
    assert_null_agrees(d, r, 200)


def test_the_drawn_row_norms_have_the_right_moments():
    """E tr Gᵖ for p = 1, 2, 3 are exact: they give the mean of ρ² and, given W_k, its variance and skewness."""
    rng = np.random.default_rng(0)
    squares = nulls._draw_row_norms(200, 50, 20, np.random.default_rng(1)) ** 2
    grams = [(w := rng.normal(size=(50, 20))).T @ w for _ in range(4000)]
    traces = [np.mean([np.trace(np.linalg.matrix_power(g, p)) for g in grams]) for p in (1, 2, 3)]
    centred = squares - squares.mean()
    assert squares.mean() == pytest.approx(traces[0], rel=0.01)
    assert squares.var() == pytest.approx(2 * traces[1], rel=0.03)
    assert (centred**3).mean() == pytest.approx(8 * traces[2], rel=0.15)


def test_the_mean_of_the_symmetry_is_one_over_d():
    null = gaussian_null(50, 50, 5)
    assert null.symmetry_mean == 1 / 50
    assert null.symmetry_z(1 / 50) == 0
    assert null.symmetry_z(1 / 50 + 3 * null.symmetry_std) == pytest.approx(3)


def test_the_standard_deviation_of_the_symmetry_falls_with_the_width():
    scaled = [gaussian_null(d, d, d // 8).symmetry_std * d for d in (64, 512, 4096)]
    assert scaled == pytest.approx([2**0.5] * 3, rel=0.15)


def test_forms_of_width_1_have_no_symmetry_z():
    null = GaussianNull(1.0, 0.0, np.zeros(4), 0.0)
    assert np.isnan(null.symmetry_z(1.0))


def test_z_and_p_of_a_directionality():
    null = GaussianNull(0.1, 0.1, np.array([-0.3, -0.1, 0.1, 0.3]), 0.0)
    assert null.directionality_p(0.0) == 1
    assert null.directionality_p(-0.2) == 3 / 5
    assert null.directionality_p(0.9) == 1 / 5
    assert null.directionality_z(-np.sqrt(0.05)) == pytest.approx(-1)
    assert np.isnan(null.directionality_p(float("nan")))


def test_forms_with_two_widths_have_no_symmetry_and_a_centre_other_than_0():
    null = gaussian_null(200, 50, 8)
    assert np.isnan(null.symmetry_mean)
    assert null.centre == pytest.approx(null.directionality.mean())
    assert null.centre > 0.2  # four times as many rows as columns: R is about 2 C
    assert gaussian_null(50, 200, 8).centre < -0.2


def test_forms_too_small_for_any_excess_have_no_z():
    null = gaussian_null(4, 4, 2)
    assert not null.directionality.any()
    assert np.isnan(null.directionality_z(0.0))
    assert null.directionality_p(0.0) == 1
    assert not gaussian_null(1, 1, 1).directionality.any()


def test_the_null_is_the_same_at_every_call(cache):
    first = gaussian_null(40, 40, 8)
    assert gaussian_null(40, 40, 8) is first
    gaussian_null.cache_clear()
    from_disk = gaussian_null(40, 40, 8)
    assert np.array_equal(from_disk.directionality, first.directionality)
    for file in (cache / "nulls").iterdir():
        file.unlink()
    gaussian_null.cache_clear()
    drawn_again = gaussian_null(40, 40, 8)
    assert np.array_equal(drawn_again.directionality, first.directionality)
    assert drawn_again.symmetry_std == first.symmetry_std


def test_the_null_is_read_from_the_cache(cache, monkeypatch):
    first = gaussian_null(40, 40, 8)
    gaussian_null.cache_clear()
    monkeypatch.setattr(nulls, "_draw_directionality", None)
    assert np.array_equal(gaussian_null(40, 40, 8).directionality, first.directionality)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:200]),
        lambda file: file.write_bytes(b"not numpy at all"),
        lambda file: np.save(file, np.full(DRAWS + 1, np.nan)),
        lambda file: np.save(file, np.zeros(DRAWS + 1)),
        lambda file: np.save(file, np.ones(3)),
        lambda file: np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True),
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
