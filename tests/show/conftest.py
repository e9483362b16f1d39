"""Results of the bundled pair and of MiniLM, computed once for the tests of all kinds of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import attngeo
from attngeo.data import NAMES, bundled

TEXT = "Some heads look at the next word, some at the previous one, and many at the first token of the sentence."


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
    return attngeo.score(smollm2, layers=[0, 1], folded=False, model="SmolLM2")


@pytest.fixture(scope="session")
def smollm2_curves(smollm2: Path) -> Any:
    from attngeo.weights.scoring.offsets import offset_curves

    return offset_curves(smollm2, last=600, layers=[0, 1])


@pytest.fixture(scope="session")
def minilm_organization(minilm: Path) -> attngeo.Organization:
    pytest.importorskip("transformers")
    return attngeo.organize(attngeo.capture(minilm, TEXT), iterations=1)


@pytest.fixture(scope="session")
def minilm_sparsity(minilm_organization: attngeo.Organization) -> attngeo.SparsityControls:
    return minilm_organization.expand().compare()


@pytest.fixture(scope="session")
def encoder_invariance() -> attngeo.InvarianceReport:
    pytest.importorskip("transformers")
    return attngeo.softmax_invariance(attngeo.capture(bundled("encoder"), TEXT), bootstrap=50)


@pytest.fixture(scope="session")
def pair_comparison() -> attngeo.ModelComparison:
    pytest.importorskip("ot")
    pytest.importorskip("transformers")
    return attngeo.compare(*(bundled(name) for name in NAMES), inputs=TEXT, draws=99)


@pytest.fixture(scope="session")
def three_models(minilm: Path) -> attngeo.ModelMap:
    pytest.importorskip("ot")
    pytest.importorskip("transformers")
    return attngeo.compare_all([*(bundled(name) for name in NAMES), minilm], inputs=TEXT)


@pytest.fixture(scope="session")
def pruning() -> tuple[Any, Any]:
    """A plan for the bundled decoder, and its losses by two criteria."""
    pytest.importorskip("transformers")
    from attngeo.applications.prune.curve import LossCurve, LossPoint

    text = (Path(__file__).parents[1] / "data" / "austen.txt").read_text()
    plan = attngeo.prune_plan(bundled("decoder"), text, share=0.5)
    points = [
        LossPoint(method, heads, heads / 16, True, 4.2 + heads / 40 + seed, seed)
        for method, seed in (("refit", 0), ("random", 0), ("random", 1))
        for heads in (4, 8)
    ]
    return plan, LossCurve("bundled/decoder", "next token", 4.3, tuple(points))


@pytest.fixture(scope="session")
def encoder_forms(pair_scores: attngeo.ScoreTable) -> Any:
    from attngeo.weights.scoring.form import extreme_heads, head_forms

    return head_forms(bundled("encoder"), extreme_heads(pair_scores.frame.filter(stack="encoder")))
