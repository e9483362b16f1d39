"""The null of an alignment by token embeddings, and what is removed from the embeddings before it."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.applications.compare.alignment import TokenEmbeddings, without_leading


@pytest.mark.parametrize("shape", [(60, 11), (11, 60)])
def test_the_leading_half_of_the_principal_components_is_removed(shape: tuple[int, int]) -> None:
    embedding = np.random.default_rng(0).normal(size=shape)
    left, values, right = np.linalg.svd(embedding - embedding.mean(0), full_matrices=False)
    values[:5] = 0  # 11 // 2
    np.testing.assert_allclose(without_leading(embedding), left * values @ right, atol=1e-12)


def test_tokens_are_shuffled_within_their_deciles() -> None:
    decile = np.repeat(np.arange(10), 8)
    rows = np.stack([decile, np.arange(80)], 1).astype(np.float64)  # [80, 2]
    embeddings = TokenEmbeddings(rows, rows, decile)
    shuffled = embeddings.shuffled(np.random.default_rng(0))
    assert shuffled.a[:, 0].tolist() == decile.tolist() and shuffled.b is embeddings.b
    assert shuffled.a[:, 1].tolist() != rows[:, 1].tolist() and set(shuffled.a[:, 1]) == set(rows[:, 1])
