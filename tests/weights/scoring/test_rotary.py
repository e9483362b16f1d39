"""Scores under rotary position embedding: the closed form, single offsets, and `Form`."""

from __future__ import annotations

import numpy as np
import pytest

from attngeo.errors import InputError
from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.engine import score_forms
from attngeo.weights.scoring.form import Form
from attngeo.weights.scoring.formulas import directionality
from attngeo.weights.scoring.layer import side_by_side
from attngeo.weights.scoring.offsets import symmetry_at
from attngeo.weights.scoring.rotary import rotary_average

RNG = np.random.default_rng(0)
D, R, G, SHARED = 40, 16, 3, 2
# Frequencies that turn fast, so that a few thousand offsets are close to the limit.
FAST = RNG.uniform(0.3, 2.8, R // 2)
CASES = {
    "halves": RotaryPairs.halves(FAST),
    "neighbours": RotaryPairs.neighbours(FAST),
    "partial": RotaryPairs.halves(FAST[:5], first=2),
    "a still pair": RotaryPairs.halves([*FAST[:7], 0.0]),
    "attention factor": RotaryPairs.halves(FAST[:6], factor=1.4),
}


def factors() -> tuple[np.ndarray, np.ndarray]:
    """Queries [G·SHARED, D, R] and keys [G, D, R] that are correlated, so that scores differ from 0."""
    key = RNG.normal(size=(G, D, R))
    query = RNG.normal(size=(G * SHARED, D, R)) + 0.7 * key.repeat(SHARED, 0)
    return query, key


def rotation(rotary: RotaryPairs, offset: np.ndarray | float) -> np.ndarray:
    """R_Δ [..., R, R] at offsets [...], attention factors of both sides included, entry by entry as defined."""
    offset = np.asarray(offset)
    matrix = np.zeros((*offset.shape, R, R)) + np.eye(R)
    for (a, b), frequency in zip(rotary.pairs, rotary.frequencies, strict=True):
        c, s = (rotary.factor**2 * wave(offset * frequency) for wave in (np.cos, np.sin))
        matrix[..., a, a], matrix[..., a, b], matrix[..., b, a], matrix[..., b, b] = c, -s, s, c
    return matrix


def explicit_average(query: np.ndarray, key: np.ndarray, rotary: RotaryPairs, offsets: int):
    """Average over offsets of the layer form Σ_h W_q^h R_Δ W_k^{g(h)ᵀ}: symmetry, row norms, column norms."""
    shared = len(query) // len(key)
    there, back = (
        sum(q @ rotation(rotary, sign * np.arange(1, offsets + 1)) @ key[h // shared].T for h, q in enumerate(query))
        for sign in (1, -1)
    )  # [offsets, D, D]
    symmetry = 2 * (there * back.mT).sum() / ((there**2).sum() + (back**2).sum())
    return symmetry, *(np.sqrt((there**2).sum(axis).mean(0)) for axis in (2, 1))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("heads", ["one head", "layer"])
def test_the_closed_form_is_the_average_over_many_offsets(name: str, heads: str) -> None:
    rotary, (query, key) = CASES[name], factors()
    if heads == "one head":
        query, key = query[:1], key[:1]
    symmetry, rows, columns = explicit_average(query, key, rotary, 3000)
    grouped = query.reshape(len(key), -1, D, R).sum(1)  # [G, D, R]
    sides = side_by_side(grouped), side_by_side(key)  # [D, G·R]
    average = rotary_average(*sides, rotary, len(key))
    scores = score_forms(*sides, rotary, groups=len(key))  # from the products of the factors
    assert float(scores.symmetry_rope) == pytest.approx(float(average.symmetry), abs=1e-12)
    assert float(scores.directionality_rope) == pytest.approx(
        float(directionality(average.rows, average.columns)), abs=1e-9
    )
    assert float(average.symmetry) == pytest.approx(symmetry, abs=1e-3)
    assert abs(symmetry) > 0.05
    np.testing.assert_allclose(average.rows, rows, rtol=4e-3)
    np.testing.assert_allclose(average.columns, columns, rtol=4e-3)


def test_without_rotating_pairs_it_is_the_plain_score() -> None:
    query, key = factors()
    still = RotaryPairs.halves(np.zeros(R // 2))
    form = Form(query[0], key[0], still)
    assert form.rope_symmetry() == pytest.approx(form.symmetry(), abs=1e-12)
    assert form.rope_directionality() == pytest.approx(form.directionality(), abs=1e-9)


def test_torch_agrees_with_numpy_on_a_batch() -> None:
    torch = pytest.importorskip("torch")
    query, key = factors()
    batch = query[:G], key  # [3, D, R]: three heads
    ours = rotary_average(*batch, CASES["partial"])
    theirs = rotary_average(*map(torch.from_numpy, batch), CASES["partial"])
    for name in ("symmetry", "rows", "columns", "alpha", "beta", "energy"):
        np.testing.assert_allclose(getattr(theirs, name).numpy(), getattr(ours, name), rtol=1e-12)
    single = [float(rotary_average(query[h], key[h], CASES["partial"]).symmetry) for h in range(G)]
    np.testing.assert_allclose(ours.symmetry, single, rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_score_at_an_offset_follows_its_definition(name: str) -> None:
    rotary, (query, key) = CASES[name], factors()
    offsets = np.array([0.0, 1.0, -1.0, 7.0, 300.0])
    found = symmetry_at(query[0], key[0], rotary, offsets)
    for offset, score in zip(offsets, found, strict=True):
        there, back = (query[0] @ rotation(rotary, sign * offset) @ key[0].T for sign in (1, -1))
        assert score == pytest.approx(2 * (there * back.T).sum() / ((there**2).sum() + (back**2).sum()), abs=1e-12)
        np.testing.assert_allclose(Form(query[0], key[0], rotary).at(offset).dense(), there, atol=1e-10)
    assert found[1] == pytest.approx(found[2], abs=1e-12)  # even in the offset


def test_at_offset_zero_it_is_the_plain_score() -> None:
    query, key = factors()
    form = Form(query[0], key[0], CASES["halves"])
    assert form.symmetry(offset=0) == pytest.approx(form.symmetry(), abs=1e-12)
    assert form.symmetry(offset=3) != pytest.approx(form.at(3).symmetry(), abs=1e-3)  # two different questions


def test_equal_queries_and_keys_up_to_a_factor_per_pair_are_symmetric() -> None:
    _, key = factors()
    rotary = CASES["neighbours"]
    query = key[0].copy()
    for pair in rotary.pairs:
        query[:, pair] *= RNG.uniform(0.5, 2.0)
    form = Form(query, key[0], rotary)
    assert form.rope_symmetry() == pytest.approx(1.0, abs=1e-12)
    assert form.symmetry(offset=11) == pytest.approx(1.0, abs=1e-12)  # and so at every offset
    query[:, rotary.pairs[0, 0]] *= 2  # a factor that differs within a pair
    assert Form(query, key[0], rotary).rope_symmetry() < 0.999


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0, 1], [1, 2]], [1.0, 0.5]), "different dimensions"),
        (([[0, 1]], [1.0, 0.5]), "1 pairs, but frequencies of shape"),
        (([[0, 1], [2, 3]], [0.5, 0.5]), "same frequency"),
        (([[0, 1]], [np.nan]), "finite frequencies"),
    ],
)
def test_impossible_pairs_are_refused(arguments, message) -> None:
    with pytest.raises(InputError, match=message):
        RotaryPairs(*arguments)


def test_pairs_outside_the_head_and_missing_pairs_are_refused() -> None:
    w = np.ones((6, 4))
    with pytest.raises(InputError, match="dimension 7 is paired, but the head has size 4"):
        Form(w, w, RotaryPairs.halves([1.0, 0.5, 0.2, 0.1]))
    with pytest.raises(InputError, match="at needs rotary pairs"):
        Form(w, w).at(3)
    with pytest.raises(InputError, match="rope_symmetry needs rotary pairs"):
        Form(w, w).rope_symmetry()
