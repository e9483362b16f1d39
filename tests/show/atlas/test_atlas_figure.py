"""The models of an atlas in the plane of two scores: each point has the coordinates of its model."""

from __future__ import annotations

import polars as pl

from attngeo.show.atlas.figures import atlas_figure


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


def test_a_long_legend_leaves_room_for_the_panel() -> None:
    rows = [(f"org/model-{number}", "main", "encoders", 0.1 * number, -0.25) for number in range(12)]
    points = pl.DataFrame(rows, schema=["model", "revision", "group", "x", "y"], orient="row")
    published = pl.DataFrame({"group": ["encoders"], "x": [0.0], "y": [0.0]})
    figure = atlas_figure(points, published, "symmetry", "directionality")
    figure.draw_without_rendering()
    label = figure.axes[0].yaxis.label.get_window_extent()
    assert figure.bbox.y0 <= label.y0 and label.y1 <= figure.bbox.y1
