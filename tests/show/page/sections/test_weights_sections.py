"""Sections of scores, maps, the plane, rotary frequencies and single heads show the values of their results."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from attngeo.data import bundled
from attngeo.show.canvas import BLUE, ORANGE
from attngeo.show.page.sections import (
    head_forms_section,
    maps_section,
    plane_section,
    rotary_section,
    scores_section,
)
from attngeo.show.page.sections.maps import heat_map
from attngeo.weights.scoring import head_nulls, layer_nulls, list_published
from attngeo.weights.scoring.form import extreme_heads, head_forms

KEYS = ("model", "stack", "layer", "head")
EXACT = {"rel": 1e-4, "abs": 1e-12}  # five significant digits


def traces_of(figure, panel):
    """Return the traces of one panel, counted from 0."""
    axis = f"x{panel + 1}" if panel else "x"
    return [trace for trace in figure.plotly["data"] if trace["xaxis"] == axis]


def named(traces, name):
    (trace,) = (trace for trace in traces if trace.get("name") == name and trace["x"] != [None])
    return trace


@pytest.mark.parametrize("scores", ["pair_scores", "minilm_scores", "smollm2_scores"])
def test_lines_dots_and_nulls_are_those_of_the_table(scores, request):
    frame = request.getfixturevalue(scores).frame
    layers, heads = layer_nulls(frame), head_nulls(frame)
    section = scores_section(frame, layers, heads)
    shown = ["symmetry", "symmetry_rope", "directionality", "directionality_rope"]
    shown = [score for score in shown if frame[score].null_count() < frame.height]
    assert [figure.id for figure in section.figures] == [f"scores-{score.replace('_', '-')}" for score in shown]
    for figure, score in zip(section.figures, shown, strict=True):
        parts = frame.partition_by("model", "stack", maintain_order=True)
        for panel, part in enumerate(parts):
            traces, key = traces_of(figure, panel), part.select("model", "stack").row(0)
            line, dots = named(traces, "layer"), named(traces, "head")
            forms = part.filter(pl.col("head").is_null())
            assert line["x"] == forms["layer"].to_list()
            assert line["y"] == pytest.approx(forms[score].to_list(), **EXACT)
            single = part.drop_nulls("head").sort("layer", "head")
            assert dots["y"] == pytest.approx(single[score].to_list(), **EXACT)
            assert dots["customdata"] == [f"L{n}H{h}" for n, h in single.select("layer", "head").rows()]
            assert np.rint(dots["x"]).tolist() == single["layer"].to_list()
            level = layers[key][score]
            band = named(traces, "random layers, 95%")["y"]
            assert [min(band), max(band)] == pytest.approx(
                [level.mean - 1.96 * level.std, level.mean + 1.96 * level.std], **EXACT
            )
            level = heads[key][score]
            low, _, _, _, high = named(traces, "random heads, 95%")["y"]
            assert [low, high] == pytest.approx([level.mean - 1.96 * level.std, level.mean + 1.96 * level.std], **EXACT)
            colour = {"encoder": BLUE, "decoder": ORANGE}[key[1]]
            assert line["line"]["color"] == dots["marker"]["color"] == colour
        rows = {row[:4]: row[4] for row in frame.select(*KEYS, score).rows()}
        for at, key in enumerate(zip(*(figure.table[name] for name in KEYS), strict=True)):
            assert figure.table[score][at] == pytest.approx(rows[key], **EXACT)
            level = (layers if key[3] is None else heads)[key[:2]][score]
            assert figure.table["chance_std"][at] == pytest.approx(level.std, **EXACT)


def test_a_table_without_heads_or_nulls_has_lines_only(pair_scores):
    frame = pair_scores.frame.filter(pl.col("head").is_null()).with_columns(
        pl.lit(None, pl.Float64).alias(name) for name in pair_scores.frame.columns if "chance" in name
    )
    (symmetry, _) = scores_section(frame, layer_nulls(frame), head_nulls(frame)).figures
    assert [trace["name"] for trace in traces_of(symmetry, 1)] == ["random layers, 95%", "layer"]
    assert symmetry.table["chance_std"] == [None] * 8


def test_maps_hold_every_score_and_one_is_visible(minilm_scores):
    frame = minilm_scores.frame
    (figure,) = maps_section(frame).figures
    traces = figure.plotly["data"]
    (menu,) = figure.plotly["layout"]["updatemenus"]
    assert [trace["name"] for trace in traces] == [button["label"] for button in menu["buttons"]]
    assert [trace["visible"] for trace in traces] == [True] + [False] * (len(traces) - 1)
    for number, button in enumerate(menu["buttons"]):
        assert button["method"] == "restyle"
        assert np.flatnonzero(button["args"][0]["visible"]).tolist() == [number]
    heads = frame.drop_nulls("head").sort("layer", "head")
    floats = [name for name, kind in frame.schema.items() if kind == pl.Float64 and heads[name].null_count() < 72]
    floats = [name for name in floats if "chance" not in name]
    assert len(traces) == len(floats)
    for name in floats:
        expected = heads[name].to_numpy().reshape(6, 12)
        found = [trace for trace in traces if np.allclose(np.array(trace["z"], float), expected, rtol=1e-4, atol=1e-12)]
        assert len(found) == 1, name
        signed = "p" not in name.split("_") and not name.startswith(("rank", "norm"))
        assert (found[0]["zmin"] == -found[0]["zmax"]) == signed
        assert figure.table[name] == pytest.approx(heads[name].to_list(), **EXACT)
    assert traces[0]["customdata"][4][9] == "L4H9"


def test_a_pruned_head_is_a_gap(minilm_scores):
    frame = minilm_scores.frame.filter(~((pl.col("layer") == 2) & (pl.col("head") == 3)).fill_null(False))
    section = maps_section(frame)
    (figure,) = section.figures
    trace, *_, cross = figure.plotly["data"]
    assert trace["z"][2][3] is None and trace["customdata"][2][3] is None
    assert sum(value is None for row in trace["z"] for value in row) == 1
    # White would be a score of 0: a cross marks the gap, whichever score is chosen.
    assert (cross["x"], cross["y"]) == ([3], [2]) and section.reading.endswith(" A cross marks a cell without a head.")
    (menu,) = figure.plotly["layout"]["updatemenus"]
    assert all(button["args"][0]["visible"][-1] for button in menu["buttons"])


def test_models_lie_before_the_published_ones(pair_scores, minilm_scores):
    summary, published = (pair_scores + minilm_scores).summary(), list_published(caution=False)
    (figure,) = plane_section(summary, published).figures
    *behind, encoder, decoder, minilm = figure.plotly["data"]
    assert sum(len(trace["x"]) for trace in behind) == published.height
    assert {trace["name"]: trace["marker"]["color"] for trace in behind} == {
        "published encoder": BLUE,
        "published decoder": ORANGE,
    }
    rows = summary.filter(pl.col("level") == "layer").rows(named=True)
    for trace, row in zip((encoder, decoder, minilm), rows, strict=True):
        assert trace["y"] == pytest.approx([row["symmetry_median"]], **EXACT)
        assert trace["x"] == pytest.approx([row["directionality_median"]], **EXACT)
        upper = row["symmetry_q75"] - row["symmetry_median"]
        assert trace["error_y"]["array"] == pytest.approx([upper], **EXACT)
    assert (encoder["marker"]["color"], decoder["marker"]["color"]) == (BLUE, ORANGE)
    assert len({trace["marker"]["symbol"] for trace in (encoder, decoder, minilm)}) == 3
    last = published.row(-1, named=True)
    assert (figure.table["model"][-1], figure.table["stack"][-1]) == (last["hub_id"], last["stack"])
    assert figure.table["symmetry"][-1] == pytest.approx(last["symmetry"], **EXACT)
    assert figure.table["published"].count(False) == 3


def test_energies_are_those_of_the_frequencies(smollm2_scores):
    frequencies = smollm2_scores.frequencies
    section = rotary_section(frequencies)
    energy, heads = section.figures
    sizes = frequencies.sort("layer", "head", "frequency", descending=[False, False, True])["energy"].to_numpy()
    expected = sizes.reshape(18, 32)
    (median,) = (trace for trace in energy.plotly["data"] if trace["name"] == "median head")
    assert median["y"] == pytest.approx(np.median(expected, 0).tolist(), **EXACT)
    assert median["x"] == pytest.approx(sorted(frequencies["frequency"].unique(), reverse=True), **EXACT)
    (band,) = (trace for trace in energy.plotly["data"] if trace["name"] == "50% of heads")
    assert band["y"][:32] == pytest.approx(np.quantile(expected, 0.25, axis=0).tolist(), **EXACT)
    (equal,) = (trace for trace in energy.plotly["data"] if trace["name"] == "equal shares")
    assert equal["y"] == pytest.approx([1 / 32] * 2, **EXACT)
    (picture,) = heads.plotly["data"]
    np.testing.assert_allclose(np.array(picture["z"]), expected, rtol=1e-4)
    assert expected.max() > picture["zmax"] and "upper end of the colour bar" in section.reading
    assert [row[0] for row in picture["customdata"]] == [f"L{n}H{h}" for n in (0, 1) for h in range(9)]


def test_curves_over_offsets_are_those_of_the_result(smollm2_curves):
    offsets, layers = rotary_section(None, [smollm2_curves]).figures
    drawn = offsets.table["offset"]
    assert drawn[:40] == [*range(33), *drawn[33:40]] and drawn[-1] == 600 and len(drawn) < 200
    lines = [trace for trace in offsets.plotly["data"] if trace["name"] == "layers"]
    for line, curve in zip(lines, smollm2_curves.layers, strict=True):
        assert line["y"] == pytest.approx(curve.symmetry[drawn].tolist(), **EXACT)
        assert line["x"][:3] == [0.5, 1.0, 2.0]  # offset 0 has no logarithm
        assert offsets.table[f"layer {curve.layer}"] == line["y"]
    levels = {trace["name"]: trace["y"][0] for trace in offsets.plotly["data"][-2:]}
    averages, limits = zip(*((curve.window_average, curve.limit) for curve in smollm2_curves.layers), strict=True)
    window = smollm2_curves.layers[0].window
    assert levels[f"average over {window:,} tokens, median layer"] == pytest.approx(np.median(averages), **EXACT)
    assert levels["limit s̄, median layer"] == pytest.approx(np.median(limits), **EXACT)
    assert layers.table["limit"] == pytest.approx(limits, **EXACT)
    assert layers.table["window average"] == pytest.approx(averages, **EXACT)
    assert layers.table["symmetry at offset 0"] == pytest.approx(
        [c.symmetry[0] for c in smollm2_curves.layers], **EXACT
    )


@pytest.mark.parametrize("model", ["encoder", "minilm"])
def test_norms_and_spectra_are_those_of_the_forms(model, request, pair_scores, minilm_scores):
    ref = bundled(model) if model == "encoder" else request.getfixturevalue(model)
    frame = minilm_scores.frame if model == "minilm" else pair_scores.frame.filter(stack="encoder")
    forms = head_forms(ref, extreme_heads(frame))
    norms, spectra = head_forms_section(forms).figures
    for panel, form in enumerate(forms):
        _, threshold, dots, *_ = traces_of(norms, panel)
        assert dots["y"] == pytest.approx(form.row_norms.tolist(), **EXACT)
        assert dots["x"] == pytest.approx(form.column_norms.tolist(), **EXACT)
        assert threshold["x"][0] == pytest.approx(form.column_threshold, **EXACT)
        assert threshold["y"][-1] == pytest.approx(form.row_threshold, **EXACT)
        symmetric, skew = traces_of(spectra, panel)
        assert symmetric["y"] == pytest.approx((form.symmetric / form.norm).tolist(), **EXACT)
        assert skew["y"] == pytest.approx((form.skew / form.norm).tolist(), **EXACT)
        assert sum(y * y for y in symmetric["y"]) == pytest.approx((1 + form.symmetry) / 2, abs=1e-3)
        assert form.label in norms.plotly["layout"]["annotations"][panel]["text"]
    assert spectra.table["symmetric"] == pytest.approx(np.concatenate([f.symmetric for f in forms]).tolist(), **EXACT)


def test_heads_of_several_models_are_told_apart():
    forms = [*head_forms(bundled("encoder"), [("encoder", 0, 0)]), *head_forms(bundled("decoder"), [("decoder", 0, 0)])]
    figures = head_forms_section(forms).figures
    assert [figure.id for figure in figures] == ["forms-norms", "forms-spectra", "forms-norms-2", "forms-spectra-2"]
    titles = [figure.plotly["layout"]["annotations"][0]["text"].split("<br>")[0] for figure in figures]
    assert titles == ["<b>bundled/encoder"] * 2 + ["<b>bundled/decoder"] * 2
    assert head_forms_section([]).figures == ()


def test_a_map_of_zeros_has_the_colour_of_zero():
    """The changes of symmetry of a model that was not changed: 0 is the middle of the colours, not their lower end."""
    labels = [["L0H0", "L0H1"]]
    signed, unsigned = (heat_map(np.zeros((1, 2)), labels, "change", sign) for sign in (True, False))
    assert (signed["zmin"], signed["zmax"]) == (-1, 1) and (unsigned["zmin"], unsigned["zmax"]) == (0, 1)


def test_a_head_without_a_score_is_explained(minilm_scores):
    zero = pl.col("head") == 3  # of every layer
    frame = minilm_scores.frame.with_columns(pl.when(zero).then(None).otherwise("symmetry").alias("symmetry"))
    assert "An empty cell is a head without a score" in maps_section(frame).reading
    assert "empty cell" not in maps_section(minilm_scores.frame).reading
