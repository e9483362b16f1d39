"""Symmetry at single offsets agrees with rotated factors, for heads and layers, and averages to the closed form."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo import Form, RotaryPairs
from attngeo.weights.scoring.rotary import rotary_average, symmetry_at, symmetry_parts

ROTARIES = {
    "halves": (RotaryPairs.halves([1.0, 0.3, 0.1, 0.03]), 8),
    "neighbours, one pair still, two dimensions without pair": (RotaryPairs.neighbours([1.0, 0.3, 0.0]), 8),
    "partial, with an attention factor": (RotaryPairs.halves([1.0, 0.3], first=2, factor=1.3), 8),
}
OFFSETS = np.array([0.0, 1.0, 7.0, 33.0])


def factors(groups: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return queries and keys [G, d, r] that resemble each other."""
    query, noise = np.random.default_rng(0).normal(size=(2, groups, 20, size))
    return query, query + noise


@pytest.mark.parametrize(("rotary", "size"), ROTARIES.values(), ids=ROTARIES)
@pytest.mark.parametrize("groups", [1, 3])
def test_parts_agree_with_rotated_factors(groups, rotary, size):
    query, key = factors(groups, size)
    numerators, denominators = symmetry_parts(query, key, rotary, OFFSETS)
    for offset, numerator, denominator in zip(OFFSETS, numerators, denominators, strict=True):
        forward, backward = (
            sum(Form(q, k, rotary).at(sign * offset).dense() for q, k in zip(query, key, strict=True))
            for sign in (1, -1)
        )
        assert numerator == pytest.approx((forward * backward.T).sum(), rel=1e-10)
        assert denominator == pytest.approx(((forward**2).sum() + (backward**2).sum()) / 2, rel=1e-10)


@pytest.mark.parametrize(("rotary", "size"), ROTARIES.values(), ids=ROTARIES)
def test_many_offsets_average_to_the_limit(rotary, size):
    query, key = factors(3, size)
    numerators, denominators = symmetry_parts(query, key, rotary, np.arange(20_000.0))
    limit = float(rotary_average(query, key, rotary).symmetry)
    assert numerators.sum() / denominators.sum() == pytest.approx(limit, abs=2e-3)
    assert abs(symmetry_at(query[0], key[0], rotary, OFFSETS)).max() <= 1
