"""The change and the cosine of two forms, compared with dense forms in float64."""

from __future__ import annotations

import numpy as np
import pytest

import attngeo
from tests.applications.compare.llama_pairs import Tensors, dense_heads

SMALL = 6, 3, 8, 40  # query heads, key heads, their size, width
LARGE = 1, 1, 128, 1100  # so large that the products are in float32


def layer(seed: int, sizes: tuple[int, int, int, int] = SMALL) -> Tensors:
    """Return the weights of one layer."""
    heads, groups, size, width = sizes
    rng = np.random.default_rng(seed)
    return {
        f"layers.0.{side}_proj.weight": rng.standard_normal((count * size, width), dtype=np.float32)
        for side, count in (("q", heads), ("k", groups))
    }


def moved(weights: Tensors, step: float, seed: int = 9) -> Tensors:
    rng = np.random.default_rng(seed)
    return {name: w + np.float32(step) * rng.standard_normal(w.shape, dtype=np.float32) for name, w in weights.items()}


def times(weights: Tensors, by: float) -> Tensors:
    return {name: w * np.float32(by) for name, w in weights.items()}


def other_basis(weights: Tensors, size: int) -> Tensors:
    """Return the same forms with the rows of every head mixed by one orthogonal matrix."""
    mixing = np.linalg.qr(np.random.default_rng(3).standard_normal((size, size)))[0].astype(np.float32)
    return {name: (mixing @ w.reshape(-1, size, w.shape[1])).reshape(w.shape) for name, w in weights.items()}


PAIRS = {
    "unrelated": (layer(0), layer(1)),
    "heads of another size": (layer(0), layer(1, (6, 3, 5, 40))),
    "large and unrelated": (layer(0, LARGE), layer(1, LARGE)),
    # ‖M_A‖² + ‖M_B‖² − 2⟨M_A, M_B⟩ would be all rounding error in float32 where the models are nearly the same.
    **{f"moved by {step}": (layer(0), moved(layer(0), step)) for step in (1e-2, 1e-4, 1e-6)},
    **{f"large, moved by {step}": (layer(0, LARGE), moved(layer(0, LARGE), step)) for step in (1e-2, 1e-6)},
    "in another basis and moved": (layer(0), other_basis(moved(layer(0), 1e-2), 8)),
    "large, in another basis and moved": (layer(0, LARGE), other_basis(moved(layer(0, LARGE), 1e-2), 128)),
    # No square may leave the range of float32, and a form must not be lost in the rounding of a larger one.
    **{f"the second times {by}": (layer(0), times(moved(layer(0), 1), by)) for by in (0.1, 1e9)},
    "large, both times 1e-20": tuple(times(layer(seed, LARGE), 1e-20) for seed in (0, 1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_changes_and_cosines_are_those_of_the_dense_forms(name: str) -> None:
    a, b = PAIRS[name]
    heads = 1 if name.startswith("large") else 6
    rows = attngeo.compare(a, b, num_heads=heads, draws=99).changes
    assert rows["head"].to_list() == [None, *range(heads)]
    of_heads = [dense_heads(*one.values(), len(one["layers.0.q_proj.weight"]) // heads) for one in (a, b)]
    for row, *both in zip(rows.iter_rows(named=True), *([dense.sum(0), *dense] for dense in of_heads), strict=True):
        m_a, m_b = both
        norm_a, norm_b = np.linalg.norm(m_a), np.linalg.norm(m_b)
        assert row["change"] == pytest.approx(np.linalg.norm(m_a - m_b) / norm_a, rel=1e-5)
        assert row["cosine"] == pytest.approx(np.sum(m_a / norm_a * (m_b / norm_b)), abs=1e-6)


@pytest.mark.parametrize("sizes", [SMALL, LARGE])
def test_another_basis_of_the_heads_is_no_change(sizes: tuple[int, int, int, int]) -> None:
    a = layer(0, sizes)
    rows = attngeo.compare(a, other_basis(a, sizes[2]), num_heads=sizes[0], draws=99).changes
    assert rows["change"].max() < 1e-5
