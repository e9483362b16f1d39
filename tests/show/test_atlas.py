"""The models of an atlas in the plane of two scores, and organised networks in words."""

from __future__ import annotations

import polars as pl

from attngeo.show import atlas_figure, summary_report


def test_each_model_stands_at_its_medians() -> None:
    rows = [("org/a", "main", "encoders", 0.5, -0.25), ("org/b", "v1", "decoders", 0.125, -0.75)]
    points = pl.DataFrame(rows, schema=["model", "revision", "group", "x", "y"], orient="row")
    published = pl.DataFrame({"group": ["decoders", "decoders"], "x": [0.0, 0.1], "y": [-0.5, -0.4]})
    figure = atlas_figure(points, published, "symmetry", "directionality")
    encoders, decoders = figure.axes
    assert encoders.get_ylabel().startswith("directionality") and encoders.get_xlabel().startswith("symmetry")
    assert [dots.get_offsets().tolist() for dots in encoders.collections] == [[[0.5, -0.25]]]
    assert [dots.get_offsets().tolist() for dots in decoders.collections] == [
        [[0.0, -0.5], [0.1, -0.4]],
        [[0.125, -0.75]],
    ]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["org/a", "published, arXiv 2502.10927", "org/b@v1"]


def test_rows_with_and_without_a_control() -> None:
    common = {"model": "org/name", "revision": "v1", "content": "c", "table": "organized", "options": "", "texts": 20}
    gain = {"figure": "gain", "mean": 0.1234, "low": 0.1, "high": 0.15, "std": 0.05, "control": 0.02, "better": 0.95}
    single = {"figure": "l1_l2_cosines", "mean": 1234.5, "low": None, "high": None, "std": None}
    share = gain | {"figure": "share90_trees", "mean": 2.3456e-5, "control": 0.02, "low": 0.0, "high": 0.001}
    rows = [common | gain, common | single | {"control": None, "better": None}, common | share]
    agreement = common | gain | {"table": "agreement", "figure": "information", "options": '{"seed": 1}', "texts": 10}
    text = summary_report(pl.DataFrame([*rows, agreement]))
    first, second, legend = text.split("\n\n")
    lines = first.splitlines()
    assert lines[0] == "org/name@v1: organized, 20 texts"
    assert lines[2].split() == ["gain", "0.123", "0.100", "to", "0.150", "0.050", "0.020", "95%"]
    assert lines[3].split() == ["l1_l2_cosines", "1234"]
    assert lines[4].split() == ["share90_trees", "0.00235%", "0%", "to", "0.1%", "5%", "2%", "95%"]
    assert second.startswith('org/name@v1: agreement, 10 pairs of texts, {"seed": 1}\n')
    assert legend.startswith("mean, interval: over texts")
