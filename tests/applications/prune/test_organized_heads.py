"""Criteria from the organisation of the heads: one head per folder stays, and the least sparse heads go first."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from attngeo.applications.prune.criteria.organized_heads import OrganizedHeads, entropy_scores, folder_scores
from attngeo.applications.prune.labels import Head


def heads_on_a_line(positions: list[float]) -> OrganizedHeads:
    """Return heads on a line; heads that are close are alike."""
    at = np.asarray(positions)
    heads = tuple(Head("decoder", 0, number) for number in range(len(at)))
    return OrganizedHeads(heads, np.exp(-np.abs(at[:, None] - at) / 2), np.arange(len(at), dtype=float))


def test_the_head_that_is_most_like_its_folder_stays() -> None:
    """Two groups of three; the one in the middle of each is its medoid, and the outermost is the next to stay."""
    positions = [0.0, 1.0, 2.5, 50.0, 51.5, 52.5]
    scores = folder_scores(heads_on_a_line(positions), kept=2)
    assert set(np.argsort(-scores)[:2].tolist()) == {1, 4}
    for folder, medoid in (([0, 1, 2], 1), ([3, 4, 5], 4)):
        distances = {head: abs(positions[head] - positions[medoid]) for head in folder if head != medoid}
        far, near = max(distances, key=distances.__getitem__), min(distances, key=distances.__getitem__)
        assert scores[medoid] > scores[far] > scores[near]


def test_heads_with_the_largest_entropy_go_first() -> None:
    assert np.argsort(entropy_scores(heads_on_a_line([0.0, 1.0, 2.0]))).tolist() == [2, 1, 0]
