"""Symmetry over offsets of a real model: s(0) is the plain score, the limit and the window average are drawn in."""

from __future__ import annotations

import numpy as np
import pytest

import attngeo
from attngeo.data import bundled
from attngeo.errors import InputError
from attngeo.weights.scoring.offsets import OffsetCurves, offset_curves
from attngeo.weights.sources.memory import MemoryCheckpoint

LAYERS = (0, 14)


@pytest.fixture(scope="module")
def curves(smollm2) -> OffsetCurves:
    return offset_curves(smollm2, last=64, layers=LAYERS)


def test_curves_begin_with_the_plain_score(curves, smollm2):
    table = attngeo.score(smollm2, layers=LAYERS, heads=False, nulls=False)
    assert curves.offsets.tolist() == list(range(65)) and repr(curves).endswith("2 layers, offsets 0 to 64)")
    assert [curve.symmetry[0] for curve in curves.layers] == pytest.approx(table.frame["symmetry"].to_list(), abs=1e-5)


def test_the_window_average_is_that_of_all_offsets_in_the_window(smollm2):
    (curve,) = offset_curves(smollm2, last=8191, layers=0).layers
    assert (curve.window, len(curve.symmetry)) == (8192, 8192)
    # Numerator and denominator are averaged separately, so the mean of s(Δ) comes near without being the same.
    assert curve.window_average == pytest.approx(curve.symmetry.mean(), abs=0.03)
    assert curve.symmetry[0] > 0.2 and curve.window_average < curve.limit < 0  # slow pairs do not turn in the window


def test_the_figure_shows_every_layer_the_limit_and_the_window_average(curves):
    left, right = curves.plot().axes
    shown = [line.get_ydata() for line in left.lines]
    for curve in curves.layers:
        assert any(np.array_equal(line, curve.symmetry) for line in shown)
    labels = {line.get_label(): line.get_ydata() for line in [*left.lines, *right.lines]}
    assert labels["limit s̄, median layer"][0] == np.median([curve.limit for curve in curves.layers])
    labels |= {points.get_label(): points.get_offsets()[:, 1] for points in right.collections}
    averages = [curve.window_average for curve in curves.layers]
    assert labels["average over 8,192 tokens, median layer"][0] == np.median(averages)
    assert labels["average over 8,192 tokens"].tolist() == averages
    assert labels["limit s̄ over all offsets"].tolist() == [curve.limit for curve in curves.layers]


def small_llama(*sides: np.ndarray) -> MemoryCheckpoint:
    """Return a layer with 2 heads of size 4 and a window of 4 positions, with these queries and keys [8, 8]."""
    config = {"model_type": "llama", "num_attention_heads": 2, "hidden_size": 8, "max_position_embeddings": 4}
    names = (f"model.layers.0.self_attn.{side}_proj.weight" for side in "qk")
    return MemoryCheckpoint("llama", config, dict(zip(names, sides, strict=True)))


def test_numerator_and_denominator_are_averaged_over_the_window():
    sides = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32)
    (curve,) = offset_curves(small_llama(*sides), last=5).layers
    (layer,) = attngeo.attention_layers(small_llama(*sides))
    heads = [attngeo.Form(query, key, layer.rotary) for query, key in zip(layer.query, layer.key, strict=True)]
    dense = [sum(head.at(offset).dense().astype(np.float64) for head in heads) for offset in range(-5, 6)]
    there, back = np.array(dense[5:]), np.array(dense[5::-1])  # [6, 8, 8], M_Δ and M_−Δ for Δ = 0 to 5
    traces = np.einsum("kij,kji->k", there, back)
    squares = ((there**2).sum((1, 2)) + (back**2).sum((1, 2))) / 2
    np.testing.assert_allclose(curve.symmetry, traces / squares, atol=1e-5)
    assert curve.window_average == pytest.approx(traces[:4].sum() / squares[:4].sum(), abs=1e-5)
    (shorter,) = offset_curves(small_llama(*sides), last=1).layers  # drawn up to Δ = 1, averaged over the whole window
    assert len(shorter.symmetry) == 2 and shorter.window_average == pytest.approx(curve.window_average)


def test_a_model_without_rotation_has_no_curves():
    with pytest.raises(InputError, match="no layer is known to rotate"):
        offset_curves(bundled("encoder"))
