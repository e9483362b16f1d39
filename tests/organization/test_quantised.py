"""The quantised expansion keeps what it says it keeps."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.errors import InputError
from attngeo.organization import planted
from attngeo.organization.quantised import quantise


def held(array, rebuilt):
    """Return the share of each head's energy that a rebuilt tensor holds."""
    return 1 - np.square(array - rebuilt).sum((0, 1)) / np.square(array).sum((0, 1))


@pytest.fixture
def tensor():
    """A planted tensor with noise, so large that only as much is kept as is asked for."""
    array, trees = planted((128, 120, 24), seed=1)
    noise = np.random.default_rng(0).standard_normal(array.shape)
    return (array + 0.3 * noise) * np.geomspace(1e-3, 1e3, 24), trees


def test_the_stated_shares_are_those_of_the_rebuilt_tensor(tensor):
    array, trees = tensor
    kept = quantise(array, trees)
    assert len(kept.levels) < array.size
    for stop in range(len(kept.stops)):
        shares = held(array, kept.rebuilt(stop))
        np.testing.assert_allclose(kept.head_shares[stop], shares, atol=1e-5)
        assert kept.shares[stop] == pytest.approx(shares.mean(), abs=1e-5)  # heads of norm 1 weigh the same
        assert kept.counts[stop] == np.count_nonzero(np.abs(kept.levels) >= kept.stops[stop])
    assert kept.shares[-1] >= 0.99 and kept.head_shares[-1].min() >= 0.95
    assert (np.diff(kept.counts) > 0).all()


@pytest.mark.parametrize("energy, head_energy", [(0.9, 0.5), (0.99, 0.95), (0.999, 0.5), (0.9, 0.97)])
def test_more_is_kept_where_more_is_asked_for(tensor, energy, head_energy):
    kept = quantise(*tensor, energy=energy, head_energy=head_energy)
    assert kept.shares[-1] >= energy and kept.head_shares[-1].min() >= head_energy


def test_the_number_of_coefficients_is_limited(tensor):
    kept = quantise(*tensor, most=2_000)
    assert 1_500 < len(kept.levels) <= 2_000
    assert kept.shares[-1] < 0.99


def test_a_small_tensor_is_kept_almost_exactly():
    array, trees = planted((12, 10, 6), seed=0)
    np.testing.assert_allclose(quantise(array, trees).rebuilt(), array, atol=1e-3 * np.abs(array).max())


def test_a_tensor_of_zeros_needs_no_coefficient():
    _, trees = planted((6, 5, 4), seed=0)
    kept = quantise(np.zeros((6, 5, 4)), trees)
    assert kept.counts.tolist() == [0] and kept.shares.tolist() == [1] and not kept.rebuilt().any()


def test_a_head_of_zeros_stays_zero(tensor):
    array, trees = tensor
    array[:, :, 5] = 0
    kept = quantise(array, trees)
    assert kept.norms[5] == 0 and not kept.rebuilt()[:, :, 5].any()
    assert kept.shares[-1] >= 0.98


def test_a_matrix_is_refused():
    with pytest.raises(InputError, match="2 axes"):
        quantise(np.zeros((3, 3)), ())
