"""The columns of rotary scores and finer figures, and the frequencies of a table, compared with their definitions."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

from attngeo.weights.layout.rotary import RotaryPairs
from attngeo.weights.scoring.directionality import directionality
from attngeo.weights.scoring.factored import Figures, score_forms
from attngeo.weights.scoring.factors import SMALL, Factors
from attngeo.weights.scoring.form import Form
from attngeo.weights.scoring.layer import layer_factors, layer_scores
from attngeo.weights.scoring.nulls.gaussian import gaussian_null, rotary_null
from attngeo.weights.scoring.nulls.repaired import derangement
from attngeo.weights.scoring.rotary import rotary_average
from attngeo.weights.scoring.score import score, score_rows
from tests.weights.scoring.random_layer import random_layer

HEADS, GROUPS, WIDTH, SIZE = 6, 3, 40, 8
ROTARIES = {
    "whole": RotaryPairs.halves([1.0, 0.3, 0.1, 0.03]),
    "partial": RotaryPairs.neighbours([0.7, 0.2], first=2),
    "attention factor": RotaryPairs.halves([1.0, 0.3, 0.1, 0.0], factor=1.3),
    "partial, attention factor": RotaryPairs.neighbours([0.7, 0.2], first=2, factor=1.3),
}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


class FakeLayers(list):
    """Layers in memory, as `open_layers` returns them."""

    model, model_type, left_out = "made", "", ()

    @property
    def count(self) -> int:
        return len(self)

    def stop(self) -> None:
        pass

    def __enter__(self) -> FakeLayers:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def correlated_layers(count: int = 2, **fields: Any) -> list:
    """Return layers whose queries resemble their keys, so that scores differ from chance."""
    layers = []
    for i in range(count):
        layer = random_layer(HEADS, GROUPS, WIDTH, SIZE, seed=i, layer=i, rotary_known=True, **fields)
        layer.query[...] += 0.8 * layer.key.repeat(HEADS // GROUPS, 0)
        layer.key[:, 7] *= 3
        layers.append(layer)
    return layers


@pytest.fixture
def scored(monkeypatch):
    """Return a function that scores layers in memory."""

    def run(layers: list, function=score_rows, **options: Any):
        monkeypatch.setattr(sys.modules[score.__module__], "open_layers", lambda ref, **_: FakeLayers(layers))
        return function("made", **options)

    return run


def forms_of(layers: list, row: dict[str, Any], keys_of=lambda layer, group: (layer, group)) -> tuple:
    """Return the float64 factors [G, d, r] of a row's form; `keys_of` says which keys a group of a layer uses."""
    i, head = row["layer"], row.get("head")
    query = layers[i].query.astype(float)  # [H, d, r]
    grouped = query.reshape(GROUPS, -1, WIDTH, SIZE).sum(1) if head is None else query[[head]]
    groups = range(GROUPS) if head is None else [head // (HEADS // GROUPS)]
    key = [layers[j].key[g] for j, g in (keys_of(i, group) for group in groups)]
    return grouped, np.stack(key).astype(float)


def assert_rotary_columns(row: dict[str, Any], query: np.ndarray, key: np.ndarray, rotary, suffix: str = "") -> None:
    average = rotary_average(query, key, rotary)
    assert row[f"symmetry_rope{suffix}"] == pytest.approx(float(average.symmetry), abs=2e-6)
    direction = float(directionality(average.rows, average.columns))
    assert row[f"directionality_rope{suffix}"] == pytest.approx(direction, abs=2e-6)


@pytest.mark.parametrize("name", ROTARIES)
def test_every_row_has_its_rotary_scores(scored, name):
    rotary = ROTARIES[name]
    layers = correlated_layers(rotary=rotary)
    rows = scored(layers).rows
    assert len(rows) == 2 * (1 + HEADS) and {row["rotary"] for row in rows} == {"yes"}
    partner = derangement(GROUPS)
    fixed = len(rotary.fixed(SIZE))
    factor = 1.3 if name == "partial, attention factor" else 1.0  # a pair with θ = 0 has the factor of the others
    for row in rows:
        assert_rotary_columns(row, *forms_of(layers, row), rotary)
        other = (lambda i, g: (1 - i, g)) if row.get("head") is None else (lambda i, g: (i, partner[g]))
        assert_rotary_columns(row, *forms_of(layers, row, other), rotary, "_repaired")
        groups = GROUPS if row.get("head") is None else 1
        null = rotary_null(WIDTH, WIDTH, groups, len(rotary.turning), fixed, factor)
        assert row["symmetry_rope_z"] == null.symmetry_z(row["symmetry_rope"])
        assert row["directionality_rope_z"] == null.directionality_z(row["directionality_rope"])
        assert row["directionality_rope_p"] == null.directionality_p(row["directionality_rope"])
        assert row["symmetry_rope_z"] > 3


def test_every_row_has_its_finer_figures(scored):
    layers = correlated_layers()
    for row in scored(layers).rows:
        query, key = (np.concatenate(list(w), 1) for w in forms_of(layers, row))  # [d, G·r]
        form = Form(query, key)
        assert row["dominance"] == pytest.approx(form.dominance(), abs=1e-5)
        assert row["self_attending"] == pytest.approx(form.self_attending(), abs=1e-5)
        assert (row["rank_symmetric"], row["rank_skew"]) == pytest.approx(form.effective_ranks(), rel=1e-3)
        null = gaussian_null(WIDTH, WIDTH, row["rank"])
        assert row["dominance_z"] == null.dominance_z(row["dominance"])
        assert row["self_attending_z"] == pytest.approx(row["self_attending"] * math.sqrt(row["rank"] * WIDTH))
        assert row["dominance"] < 0 < row["self_attending"]
        assert row["rotary"] == "no" and row["symmetry_rope"] is None and "symmetry_rope_z" not in row


def test_the_rank_of_a_layer_is_at_most_its_width(scored):
    """Where all heads together have more columns than the token vectors, τ and its z divide by √d."""
    wide = random_layer(8, 8, WIDTH, SIZE, rotary_known=True)
    row, *_ = scored([wide]).rows
    form = Form(*(np.concatenate(list(w.astype(float)), 1) for w in (wide.query, wide.key))).dense()
    tau = np.trace(form) / (math.sqrt(WIDTH) * np.linalg.norm(form))
    assert row["rank"] == 8 * SIZE > WIDTH
    assert row["self_attending"] == pytest.approx(tau, abs=1e-6)
    assert row["self_attending_z"] == pytest.approx(tau * WIDTH, rel=1e-4)


def test_cross_attention_and_two_widths(scored):
    crossing = random_layer(4, 2, 40, 4, cross=True, stack="cross", rotary_known=True)
    rows = scored([crossing]).rows
    assert {row["self_attending"] for row in rows} == {None}
    assert all(row["rank_skew"] > 1 for row in rows)
    narrow = random_layer(4, 2, 40, 4, rotary_known=True, rotary=RotaryPairs.halves([1.0, 0.5]))
    object.__setattr__(narrow, "key", narrow.key[:, :30])
    for row in scored([narrow]).rows:
        assert row["self_attending"] is row["rank_skew"] is row["symmetry_rope"] is None
        assert -1 <= row["directionality_rope"] <= 1 and 0 < row["directionality_rope_p"] <= 1
        assert row["dominance"] is not None and row["dominance_z"] is not None


def test_rotation_that_was_never_proved_is_said_once(scored):
    layers = [random_layer(seed=i, layer=i, rotary=RotaryPairs.halves([1.0, 0.5])) for i in range(2)]
    found = scored(layers)
    assert {row["rotary"] for row in found.rows} == {"not proved"}
    assert {row["symmetry_rope"] for row in found.rows} == {None}
    (note,) = found.notes
    assert note.startswith("made: whether and how this model rotates queries and keys by their positions is not proved")


def test_pairs_that_all_stand_still_are_no_rotation(scored):
    rows = scored(correlated_layers(rotary=RotaryPairs.halves([0.0, 0.0, 0.0, 0.0]))).rows
    assert {row["rotary"] for row in rows} == {"no"} and {row["symmetry_rope"] for row in rows} == {None}


def test_zero_heads_have_no_finer_figures(scored):
    layers = correlated_layers(1, rotary=ROTARIES["whole"])
    layers[0].query[2] = 0
    with pytest.warns(UserWarning, match="made: no score where the query"):
        frame = scored(layers, score, frequencies=True).frame
    row = frame.row(3, named=True)
    for name in ("symmetry_rope", "directionality_rope", "dominance", "self_attending", "rank_symmetric", "rank_skew"):
        assert row[name] is None and row.get(f"{name}_z") is None


def test_frequencies_have_one_row_per_head_and_pair(scored):
    rotary = ROTARIES["attention factor"]
    layers = correlated_layers(rotary=rotary)
    table = scored(layers, score, frequencies=True)
    assert table.frequencies.height == 2 * HEADS * 3  # one of the four pairs stands still
    assert table == scored(layers, score)  # which is the default
    assert scored(layers, score, frequencies=False).frequencies is None
    assert scored(layers, score, heads=False).frequencies is None
    rows = table.frequencies.filter(layer=1, head=4).to_dicts()
    query, key = (w[0] for w in forms_of(layers, {"layer": 1, "head": 4}))
    query, key = query * rotary.scale(SIZE), key * rotary.scale(SIZE)
    total = 0.0
    for row, (a, b), theta in zip(rows, rotary.turning, rotary.turning_frequencies, strict=True):
        x = query[:, [a, b]].T @ key[:, [a, b]]
        assert row["frequency"] == theta
        assert row["alpha"] == pytest.approx((x[0, 0] + x[1, 1]) / 2, rel=1e-5)
        assert row["beta"] == pytest.approx((x[1, 0] - x[0, 1]) / 2, rel=1e-5)
        assert row["phase"] == pytest.approx(math.atan2(row["beta"], row["alpha"]))
        assert row["preferred_offset"] == pytest.approx(row["phase"] / theta)
        energy = (query[:, [a, b]] ** 2).sum() * (key[:, [a, b]] ** 2).sum()
        assert row["energy"] / rows[0]["energy"] == pytest.approx(energy / total if total else 1.0, rel=1e-5)
        total = total or energy
    assert sum(row["energy"] for row in rows) == pytest.approx(1)


@pytest.mark.parametrize("rotary", ROTARIES.values(), ids=ROTARIES)
def test_heads_that_need_more_digits_have_the_same_pairs(scored, monkeypatch, rotary):
    """They are computed again from factors that are divided by their largest entry."""
    layers = correlated_layers(1, rotary=rotary)
    expected = scored(layers, score).frequencies
    monkeypatch.setattr("attngeo.weights.scoring.factored.TRUSTED", 0.0)
    found = scored(layers, score).frequencies
    for name in ("energy", "alpha", "beta", "phase", "preferred_offset"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, err_msg=name)


def test_shares_of_energy_and_phases_do_not_depend_on_the_scale(scored):
    layers, small = (correlated_layers(1, rotary=ROTARIES["whole"]) for _ in range(2))
    small[0].query[:] *= np.float32(2**-12)
    frequencies, of_small = (scored(some, score).frequencies for some in (layers, small))
    for name in ("energy", "phase", "preferred_offset"):
        np.testing.assert_allclose(of_small[name], frequencies[name], rtol=1e-10, err_msg=name)


def test_zero_heads_have_pairs_without_energy(scored):
    layers = correlated_layers(1, rotary=ROTARIES["whole"])
    layers[0].query[2] = 0
    with pytest.warns(UserWarning, match="made: no score where the query"):
        frequencies = scored(layers, score).frequencies
    assert frequencies.height == HEADS * 4
    zero = frequencies.filter(head=2)
    assert zero.select("alpha", "beta").unique().rows() == [(0.0, 0.0)]
    assert zero.select("energy", "phase", "preferred_offset").unique().rows() == [(None, None, None)]


def test_the_pairs_of_a_head_add_up_to_the_trace_at_every_offset(scored):
    """tr M_Δ = Σ_f 2√(α² + β²) cos(Δθ − φ), greatest for each pair at its preferred offset."""
    rotary = ROTARIES["whole"]
    layers = correlated_layers(1, rotary=rotary)
    rows = scored(layers, frequencies=True).frequencies[:4]
    form = Form(*(w[0] for w in forms_of(layers, {"layer": 0, "head": 0})), rotary)
    for offset in (0.0, 1.0, -3.0, 20.0):
        waves = [
            2 * math.hypot(row["alpha"], row["beta"]) * math.cos(offset * row["frequency"] - row["phase"])
            for row in rows
        ]
        assert sum(waves) == pytest.approx(np.trace(form.at(offset).dense()), rel=1e-5)


def hard_factors(kind: str, d: int, r: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 factors [r, d] too large for float64 throughout, of a kind that is hard to score precisely."""
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, r, d), dtype=np.float32)
    if kind == "nearly symmetric":
        key = query + np.float32(0.05) * key
    elif kind == "one large row":
        query[:, 3] *= 100
    elif kind == "cancelling":  # the unrotated dimensions of M nearly cancel
        query[1::2] = query[::2]
        key[1::2] = -key[::2] + np.float32(1e-4) * key[1::2]
    elif kind == "tiny":
        query *= np.float32(1e-18)
        key *= np.float32(1e-15)
    return query, key


@pytest.mark.parametrize("kind", ["gaussian", "nearly symmetric", "one large row", "cancelling", "tiny"])
@pytest.mark.parametrize("turning", [64, 16])
def test_rotary_scores_and_ranks_of_large_heads_are_precise(kind, turning):
    d, r = 1200, 128
    assert d * r * r > SMALL
    query, key = hard_factors(kind, d, r)
    rotary = RotaryPairs.neighbours(np.arange(1, turning + 1) / 50, first=r - 2 * turning)
    (scores,) = score_forms(Factors(query[None]), Factors(key[None]), Figures(ranks=True, rotary=rotary))
    exact = rotary_average(query.T[None].astype(float), key.T[None].astype(float), rotary)
    assert scores.rotary.symmetry == pytest.approx(float(exact.symmetry), abs=2e-6)
    assert scores.rotary.directionality == pytest.approx(float(directionality(exact.rows, exact.columns)), abs=2e-6)
    scale = float(np.abs(query).max() * np.abs(key).max())
    expected = Form(query.T.astype(float) / math.sqrt(scale), key.T.astype(float) / math.sqrt(scale)).effective_ranks()
    assert (scores.rank_symmetric, scores.rank_skew) == pytest.approx(expected, rel=2e-3, nan_ok=True)


@pytest.mark.parametrize("kind", ["gaussian", "cancelling groups", "tiny", "one large row"])
@pytest.mark.parametrize("turning", [16, 4])
def test_rotary_scores_of_large_layers_are_precise(turning, kind):
    layer = random_layer(16, 8, 1100, 32)
    layer.query[1::2] -= layer.query[::2]  # each group of two heads adds up to what the second held
    if kind == "cancelling groups":  # what half the groups do, the others nearly undo
        layer.key[4:] = layer.key[:4]
        layer.query[8:] = -layer.query[:8] + np.float32(1e-3) * layer.query[8:]
    elif kind == "tiny":
        layer.query[...] *= np.float32(1e-18)
        layer.key[...] *= np.float32(1e-15)
    elif kind == "one large row":
        layer.query[:, 3] *= 100
    rotary = RotaryPairs.halves(np.arange(1, turning + 1) / 20)
    factors = layer_factors(layer)
    scores = layer_scores(factors.layer_query, factors.layer_key, Figures(rotary=rotary), 8)
    query = layer.query.astype(float).reshape(8, 2, 1100, 32).sum(1)
    exact = rotary_average(query, layer.key.astype(float), rotary)
    assert scores.rotary.symmetry == pytest.approx(float(exact.symmetry), abs=2e-6)
    assert scores.rotary.directionality == pytest.approx(float(directionality(exact.rows, exact.columns)), abs=2e-6)
