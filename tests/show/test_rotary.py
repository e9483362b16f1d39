"""What the rotary pairs of a model do, as text, as figures and as a section of a page."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from attngeo.show import frequency_figure, frequency_report, rotary_figure, rotary_section
from attngeo.show.tables import Terminal
from attngeo.weights.scoring.rotary import FAST, frequency_summary
from tests.show.same import same

LAYERS = (0, 1)


@pytest.fixture(scope="module")
def frequencies(smollm2_scores) -> pl.DataFrame:
    return smollm2_scores.frequencies


def named(figure, name):
    return next(trace for trace in figure.plotly["data"] if trace.get("name") == name)


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
    text = frequency_report(frequencies, terminal)
    lines = text.splitlines()
    assert max(map(len, lines[1:])) <= 100
    assert max(map(len, lines[1 : lines.index("")])) <= terminal.width
    assert [line.split()[0] for line in lines[2:4]] == [str(layer) for layer in LAYERS]
    assert "within 32 tokens" in text and "more than 4,096 tokens" in text
    assert ("█" in text) == (terminal.bars and terminal.width == 100)


def test_energies_are_those_of_the_frequencies_on_paper_and_on_a_page(frequencies):
    section = rotary_section(frequencies)
    energy, heads = section.figures
    sizes = frequencies.sort("layer", "head", "frequency", descending=[False, False, True])["energy"].to_numpy()
    expected = sizes.reshape(18, 32)
    median = named(energy, "median head")
    same(median["y"], np.median(expected, 0))
    same(median["x"], sorted(frequencies["frequency"].unique(), reverse=True))
    same(named(energy, "50% of heads")["y"][:32], np.quantile(expected, 0.25, axis=0))
    same(named(energy, "equal shares")["y"], [1 / 32] * 2)
    (picture,) = heads.plotly["data"]
    np.testing.assert_allclose(np.array(picture["z"]), expected, rtol=1e-4)
    assert expected.max() > picture["zmax"] and "upper end of the colour bar" in section.reading
    assert [row[0] for row in picture["customdata"]] == [f"L{n}H{h}" for n in (0, 1) for h in range(9)]
    lines, *_ = frequency_figure(frequencies).axes  # on paper, a line for each head
    assert {tuple(row) for row in expected} <= {tuple(line.get_ydata()) for line in lines.lines}


def test_curves_over_offsets_are_those_of_the_result(smollm2_curves):
    offsets, layers = rotary_section(None, [smollm2_curves]).figures
    drawn = offsets.table["offset"]
    assert drawn[:40] == [*range(33), *drawn[33:40]] and drawn[-1] == 600 and len(drawn) < 200
    lines = [trace for trace in offsets.plotly["data"] if trace["name"] == "layers"]
    for line, curve in zip(lines, smollm2_curves.layers, strict=True):
        same(line["y"], curve.symmetry[drawn])
        assert line["x"][:3] == [0.5, 1.0, 2.0]  # offset 0 has no logarithm
        assert offsets.table[f"layer {curve.layer}"] == line["y"]
    averages, limits = zip(*((curve.window_average, curve.limit) for curve in smollm2_curves.layers), strict=True)
    average = named(offsets, f"average over {smollm2_curves.layers[0].window:,} tokens, median layer")
    same(average["y"][0], np.median(averages))
    same(named(offsets, "limit s̄, median layer")["y"][0], np.median(limits))
    plain = [curve.symmetry[0] for curve in smollm2_curves.layers]
    for name, values in {"limit": limits, "window average": averages, "symmetry at offset 0": plain}.items():
        same(layers.table[name], values)


def test_both_figures_of_several_models_stand_below_each_other(frequencies, smollm2_curves):
    model = frequencies.with_columns(model=pl.lit(smollm2_curves.model))
    figure = rotary_figure(pl.concat([model, frequencies]), [smollm2_curves])
    titles = [ax.get_title(loc="left") for ax in figure.axes if ax.get_title(loc="left")]
    energy, offsets = ["share of energy"] * 2, ["symmetry s(Δ)", "symmetry by layer"]
    assert titles == [*energy, *offsets, *energy]


def test_heads_without_energy_and_layers_of_other_frequencies_are_drawn(frequencies):
    first, second = (pl.col("layer") == layer for layer in LAYERS)
    zero = pl.when(first & (pl.col("head") == 0)).then(None).otherwise("energy").alias("energy")
    other = pl.when(second).then(pl.col("frequency") / 2).otherwise("frequency").alias("frequency")
    lines, image, _ = frequency_figure(frequencies.with_columns(zero, other)).axes
    assert {"median of 8 heads", "median of 9 heads"} <= {line.get_label() for line in lines.lines}
    assert np.isnan(image.images[0].get_array().filled(np.nan)[0]).all()
    assert frequency_summary(frequencies.with_columns(energy=pl.lit(None, pl.Float64))).height == 0


def test_offsets_before_the_query_are_printed_below_zero():
    pairs = {"pair": [0, 1], "frequency": [0.5, 0.001], "energy": [0.25, 0.75], "preferred_offset": [3.0, -1234.5]}
    report = frequency_report(pl.DataFrame({"model": "m", "stack": "decoder", "layer": 2, "head": 5, **pairs}))
    row = report.splitlines()[2]
    assert row.split() == ["2", "0.250", "0.000", "0.750", "5", "1", "0.750", "6,283", "-1,234"]
