"""The null of the layers in a score table is the Gaussian null of their shape."""

from __future__ import annotations

import polars as pl

import attngeo
from attngeo.bundled import NAMES, bundled
from attngeo.weights.scoring.nulls.gaussian import gaussian_null
from attngeo.weights.scoring.nulls.layer_nulls import layer_nulls


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
    assert [(level.mean, level.std) for level in levels.values()] == [(1 / 128, None), (0, None)]


def test_cross_attention_has_no_standard_deviation():
    frame = attngeo.score(str(bundled("encoder"))).frame.with_columns(cross=True)
    ((_, levels),) = layer_nulls(frame).items()
    assert [level.std for level in levels.values()] == [None, None]
