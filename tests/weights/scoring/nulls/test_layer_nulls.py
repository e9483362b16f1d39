"""The null of the layers in a score table is the Gaussian null of their shape."""

from __future__ import annotations

import polars as pl
import pytest

import attngeo
from attngeo.data import NAMES, bundled
from attngeo.weights.scoring.nulls.gaussian import gaussian_null, rotary_null
from attngeo.weights.scoring.nulls.layer_nulls import SCORES, head_nulls, layer_nulls


def test_the_null_of_each_stack_has_the_shape_of_its_layers():
    table = sum((attngeo.score(str(bundled(name))) for name in NAMES[1:]), attngeo.score(str(bundled(NAMES[0]))))
    nulls = layer_nulls(table.frame)
    assert list(nulls) == [(str(bundled(name)), name) for name in NAMES]
    for row in table.frame.filter(pl.col("head").is_null()).iter_rows(named=True):
        null = gaussian_null(row["query_width"], row["key_width"], row["rank"])
        levels = nulls[row["model"], row["stack"]]
        assert (levels["symmetry"].mean, levels["symmetry"].std) == (1 / row["query_width"], null.symmetry_std)
        assert (levels["directionality"].mean, levels["directionality"].std) == (0, null.directionality_std)
        assert row["symmetry_z"] == (row["symmetry"] - levels["symmetry"].mean) / levels["symmetry"].std


def test_a_table_without_nulls_has_means_only():
    nulls = layer_nulls(attngeo.score(str(bundled("encoder")), nulls=False).frame)
    ((_, levels),) = nulls.items()
    assert [(level.mean, level.std) for level in levels.values()] == [(1 / 128, None)] + 3 * [(0, None)]
    (of_heads,) = head_nulls(attngeo.score(str(bundled("encoder")), nulls=False).frame).values()
    assert of_heads["symmetry"].mean == 1 / 128  # of the width, not of the rank


def test_cross_attention_has_no_standard_deviation():
    frame = attngeo.score(str(bundled("encoder"))).frame.with_columns(cross=True)
    ((_, levels),) = layer_nulls(frame).items()
    assert {level.std for level in levels.values()} == {None}


def test_rotary_scores_and_finer_figures_have_their_nulls(smollm2):
    frame = attngeo.score(smollm2, layers=[0, 1], folded=False).frame
    ((_, levels),) = layer_nulls(frame).items()
    rope = rotary_null(576, 576, 3, 32, 0)
    assert levels["symmetry_rope"].mean == pytest.approx(rope.symmetry_mean, abs=1e-9)
    assert levels["symmetry_rope"].std == pytest.approx(rope.symmetry_std, rel=1e-9)
    assert levels["directionality_rope"].std == pytest.approx(rope.directionality_std, rel=1e-9)
    assert levels["dominance"].std == gaussian_null(576, 576, 192).dominance_std
    assert levels["self_attending"].std == pytest.approx((192 * 576) ** -0.5)
    ((_, one),) = layer_nulls(frame.head(1)).items()
    assert one["symmetry_rope"].std is None
    assert one["directionality_rope"].std == pytest.approx(rope.directionality_std, rel=1e-9)
    ((_, encoder),) = layer_nulls(attngeo.score(str(bundled("encoder")), nulls=False).frame).items()
    assert "symmetry_rope" not in encoder and encoder["dominance"].std is None


@pytest.mark.parametrize("model", ["encoder", "smollm2"])
def test_the_null_of_the_heads_gives_them_their_z(model, request):
    rotary = model == "smollm2"
    ref = request.getfixturevalue(model) if rotary else bundled(model)
    frame = attngeo.score(ref, layers=[0, 1], folded=False).frame
    ((key, levels),) = head_nulls(frame).items()
    assert key == frame.select("model", "stack").row(0)
    assert set(levels) == set(SCORES) - (set() if rotary else {"symmetry_rope", "directionality_rope"})
    for score, level in levels.items():
        heads = frame.drop_nulls(["head", f"{score}_z"])
        assert heads.height > 4
        expected = (heads[score] - level.mean) / level.std
        assert heads[f"{score}_z"].to_list() == pytest.approx(expected.to_list(), rel=1e-9, abs=1e-9)


def test_a_table_without_heads_has_no_null_of_heads():
    assert head_nulls(attngeo.score(bundled("encoder"), heads=False).frame) == {}
