"""Results of the bundled pair, of published models and of made-up networks, computed once for all tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attngeo
from attngeo.applications.compare.comparison import GEOMETRY, ModelMap, Pair
from attngeo.applications.compare.distance import NetworkDistance
from attngeo.applications.prune.curve import LossCurve, LossPoint
from attngeo.applications.prune.plan import PrunePlan, RemovedHead
from attngeo.data import NAMES, bundled
from attngeo.organization import NetworkTensor, organize, planted
from attngeo.weights.scoring.form import extreme_heads, head_forms
from attngeo.weights.scoring.offsets import offset_curves


@pytest.fixture(scope="session")
def pair_scores() -> attngeo.ScoreTable:
    """The scores of the bundled encoder and decoder in one table."""
    encoder, decoder = (attngeo.score(bundled(name), model=name) for name in NAMES)
    return encoder + decoder


@pytest.fixture(scope="session")
def minilm_scores(minilm: Path) -> attngeo.ScoreTable:
    return attngeo.score(minilm, model="all-MiniLM-L6-v2")


@pytest.fixture(scope="session")
def smollm2_scores(smollm2: Path) -> attngeo.ScoreTable:
    """The scores of two layers that rotate queries and keys."""
    return attngeo.score(smollm2, layers=[0, 1], folded=False, frequencies=True, model="SmolLM2")


@pytest.fixture(scope="session")
def smollm2_curves(smollm2: Path) -> Any:
    return offset_curves(smollm2, last=600, layers=[0, 1])


@pytest.fixture(scope="session")
def encoder_forms(pair_scores: attngeo.ScoreTable) -> Any:
    return head_forms(bundled("encoder"), extreme_heads(pair_scores.frame.filter(stack="encoder")))


@pytest.fixture(scope="session")
def organization() -> attngeo.Organization:
    """An organised network with the heads of six layers of twelve, on words of several kinds."""
    heads = tuple(f"L{layer}H{head}" for layer in range(6) for head in range(12))
    words = tuple(f"{word}{place}" for place in range(6) for word in ("Ġthe", "▁of", "##ing"))
    values = planted((18, 18, 72), seed=0)[0]
    return organize(NetworkTensor(values, queries=words, keys=words, heads=heads, name="made"), iterations=20)


@pytest.fixture(scope="session")
def sparsity(organization: attngeo.Organization) -> attngeo.SparsityControls:
    return organization.expand().compare()


@pytest.fixture(scope="session")
def invariance() -> attngeo.InvarianceReport:
    return attngeo.softmax_invariance(planted((20, 20, 8), seed=0)[0], bootstrap=50)


@pytest.fixture(scope="session")
def comparison() -> attngeo.ModelComparison:
    """The bundled pair compared, with a made-up distance of their networks."""
    found = attngeo.compare(*(bundled(name) for name in NAMES), draws=99)
    return replace(found, distance=NetworkDistance(0.2, 0.4, 0.02, 0.01, 99, 16, 16, 0.05))


@pytest.fixture(scope="session")
def three_models() -> attngeo.ModelMap:
    pairs = (Pair(0, 1, 0.9, 0.5, "unrelated"), Pair(0, 2, 0.1, 0.001, "related"), Pair(1, 2, 0.8))
    return ModelMap(("base", "other", "tuned"), GEOMETRY, pairs)


@pytest.fixture(scope="session")
def pruning() -> tuple[PrunePlan, LossCurve]:
    """A plan for a model of 20 heads, and its losses by two criteria."""
    removed = tuple(
        RemovedHead("decoder", layer, head, cost) for layer, head, cost in ((3, 7, 0.25), (0, 1, 0.5), (3, 2, 1.0))
    )
    plan = PrunePlan("made", "llama", "", ("decoder",), 20, "sensitivity", "query", removed, notes=("a note",))
    points = (
        LossPoint("sensitivity", 2, 0.1, False, 3.5),
        LossPoint("sensitivity", 2, 0.1, True, 3.125),
        LossPoint("sensitivity", 6, 0.3, True, 3.25),
        LossPoint("random", 2, 0.1, False, 4.0, seed=0),
        LossPoint("random", 2, 0.1, False, 5.0, seed=1),
    )
    return plan, LossCurve("made", "next token", 3.0, points)
