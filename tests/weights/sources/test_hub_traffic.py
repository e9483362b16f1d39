"""The limits of what travels from the hub, on small models; `bench/hub.py` has the larger ones."""

from __future__ import annotations

import pytest

from bench.hub import Model, measure, models

SMALL = models(width=128, layers=3)


@pytest.mark.parametrize("model", SMALL, ids=[model.kind for model in SMALL])
def test_no_more_than_queries_and_keys_in_two_requests_a_layer(model: Model) -> None:
    traffic = measure(model, layers=3)
    assert traffic.sent <= traffic.limit
    assert traffic.requests <= 2
    assert 0 < traffic.sent < traffic.whole
