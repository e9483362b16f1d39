"""The verdict on a common origin: at which p-value it is given, and when the null also flips signs."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from attngeo.applications.compare.compare import compare
from attngeo.applications.compare.relation import Relation, judged, statistic
from attngeo.data import bundled
from tests.applications.compare.llama_pairs import random_model, save_model


@pytest.mark.parametrize(("above", "related"), [(0, True), (1, False)])
def test_a_common_origin_needs_a_p_value_of_one_percent(above, related):
    forms = np.eye(16)[:, :3]
    layers = [(forms, forms)]
    null = np.where(np.arange(99) < above, 2.0, 0.1) * statistic(layers)
    relation = judged(layers, 0.7, null, aligned=False)
    assert relation.p_value == pytest.approx((1 + above) / 100) and relation.related is related
    assert relation.verdict.startswith("the weights share an origin, p ≤" if related else "no sign of a common origin")
    assert (relation.cosine, relation.statistic, relation.draws) == (0.7, 1.0, 99)


def test_signs_are_flipped_only_between_models_whose_norms_do_not_subtract_the_mean(tmp_path, monkeypatch):
    llamas = [save_model(tmp_path / str(seed), random_model(seed)) for seed in (0, 1)]
    flipped = []

    def note(*_: object, flips: bool, **__: object) -> Relation:
        flipped.append(flips)
        return Relation.none("not tested here")

    monkeypatch.setattr(sys.modules[compare.__module__], "relation_by_permutation", note)
    compare(*llamas)  # RMSNorm
    compare(bundled("encoder"), bundled("decoder"))  # LayerNorm
    assert flipped == [True, False]
