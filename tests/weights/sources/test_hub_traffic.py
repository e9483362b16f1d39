"""Limits on the bytes fetched from the hub, for small models; `bench/hub.py` measures larger ones."""

from __future__ import annotations

import pytest

from bench.hub import Model, measure, models

SMALL = models(width=128, layers=3)


@pytest.mark.parametrize(
    "model", [*SMALL[:2], *(pytest.param(model, marks=pytest.mark.slow) for model in SMALL[2:])], ids=lambda it: it.kind
)
def test_queries_and_keys_are_fetched_in_two_requests_per_layer(model: Model) -> None:
    traffic = measure(model, layers=3)
    assert traffic.sent <= traffic.limit
    assert traffic.requests <= 2
    assert 0 < traffic.sent < traffic.whole
