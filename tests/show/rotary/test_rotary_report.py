"""What the rotary pairs of a model do, as text and as figures."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import attngeo
from attngeo.show import frequency_figure, frequency_report, rotary_figure
from attngeo.show.terminal import Terminal
from attngeo.weights.scoring.offsets import offset_curves
from attngeo.weights.scoring.rotary import FAST, SLOW, frequency_summary

LAYERS = (0, 14)


@pytest.fixture(scope="module")
def frequencies(smollm2) -> pl.DataFrame:
    table = attngeo.score(smollm2, layers=LAYERS, nulls=False, folded=False, frequencies=True)
    assert table.frequencies is not None
    return table.frequencies


def test_the_summary_adds_up_and_names_the_strongest_pair(frequencies):
    summary = frequency_summary(frequencies)
    assert summary["layer"].to_list() == list(LAYERS)
    assert summary.select(pl.sum_horizontal("fast", "medium", "slow")).to_series().to_list() == pytest.approx([1, 1])
    for row in summary.iter_rows(named=True):
        layer = frequencies.filter(pl.col("layer") == row["layer"])
        fast = layer.filter(2 * np.pi / pl.col("frequency") <= FAST)
        assert row["fast"] == pytest.approx(fast["energy"].sum() / layer["head"].n_unique())
        strongest = layer.sort("energy").row(-1, named=True)
        assert (row["head"], row["pair"], row["share"]) == (strongest["head"], strongest["pair"], strongest["energy"])
        assert row["turn"] == pytest.approx(2 * np.pi / strongest["frequency"])
        assert row["offset"] == strongest["preferred_offset"]


@pytest.mark.parametrize("terminal", [Terminal(), Terminal(bars=True), Terminal(80, bars=True)], ids=str)
def test_the_report_fits_and_explains_itself(frequencies, terminal):
    text = frequency_report(frequency_summary(frequencies), FAST, SLOW, terminal)
    lines = text.splitlines()
    assert max(map(len, lines[1:])) <= 100
    assert max(map(len, lines[1 : lines.index("")])) <= terminal.width
    assert [line.split()[0] for line in lines[2:4]] == [str(layer) for layer in LAYERS]
    assert "within 32 tokens" in text and "more than 4,096 tokens" in text
    assert ("█" in text) == (terminal.bars and terminal.width == 100)


def test_the_figure_has_a_line_and_a_row_for_each_head(frequencies):
    lines, image, _ = frequency_figure(frequencies).axes
    heads = frequencies.partition_by("layer", "head", maintain_order=True)
    shown = {tuple(line.get_ydata()) for line in lines.lines}
    assert all(tuple(head["energy"]) in shown for head in heads)
    matrix = image.images[0].get_array()
    assert matrix.shape == (len(heads), 32)
    assert np.allclose(matrix.sum(1), 1)
    assert [label.get_text() for label in image.get_yticklabels()] == [str(layer) for layer in LAYERS]


def test_both_figures_of_several_models_stand_below_each_other(frequencies, smollm2):
    curves = offset_curves(smollm2, last=8, layers=LAYERS)
    copy = frequencies.with_columns(model=pl.lit("copy"))
    figure = rotary_figure(pl.concat([frequencies, copy]), [curves])
    titles = [ax.get_title(loc="left") for ax in figure.axes if ax.get_title(loc="left")]
    energy, offsets = ["share of energy"] * 2, ["symmetry s(Δ)", "symmetry by layer"]
    assert titles == [*energy, *offsets, *energy]


def test_heads_without_energy_and_layers_of_other_frequencies_are_drawn(frequencies):
    first, second = (pl.col("layer") == layer for layer in LAYERS)
    zero = pl.when(first & (pl.col("head") == 0)).then(None).otherwise("energy").alias("energy")
    other = pl.when(second).then(pl.col("frequency") / 2).otherwise("frequency").alias("frequency")
    lines, image, _ = frequency_figure(frequencies.with_columns(zero, other)).axes
    labels = [line.get_label() for line in lines.lines]
    assert "median of 8 heads" in labels and "median of 9 heads" in labels
    assert np.isnan(image.images[0].get_array().filled(np.nan)[0]).all()
    assert frequency_summary(frequencies.with_columns(energy=pl.lit(None, pl.Float64))).height == 0


def test_offsets_before_the_query_are_printed_below_zero():
    pairs = {"pair": [0, 1], "frequency": [0.5, 0.001], "energy": [0.25, 0.75], "preferred_offset": [3.0, -1234.5]}
    table = pl.DataFrame({"model": "m", "stack": "decoder", "layer": 2, "head": 5, **pairs})
    row = frequency_report(frequency_summary(table), FAST, SLOW).splitlines()[2]
    assert row.split() == ["2", "0.250", "0.000", "0.750", "5", "1", "0.750", "6,283", "-1,234"]
