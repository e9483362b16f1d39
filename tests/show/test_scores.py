"""Scores as figures and as sections of a page: every layer, head, null and colour is that of the table."""

from __future__ import annotations

import pickle

import numpy as np
import polars as pl
import pytest

import attngeo
from attngeo.charts import BLUE, ORANGE
from attngeo.data import bundled
from attngeo.show import head_forms_section, maps_section, plane_section, scores_section
from attngeo.weights.scoring import head_nulls, layer_nulls, list_published
from attngeo.weights.scoring.form import head_forms
from attngeo.weights.scoring.gaussian_null import gaussian_null
from tests.show.same import same


def panel_traces(figure, panel):
    """Return the traces of one panel of a page's figure that have points."""
    axis = f"x{panel + 1}" if panel else "x"
    return [trace for trace in figure.plotly["data"] if trace["xaxis"] == axis and trace["x"] != [None]]


def line_of(ax, label):
    return next(line for line in ax.lines if line.get_label() == label)


def test_a_notebook_shows_a_figure_without_settings(minilm_scores):
    """IPython knows matplotlib's figures only after `%matplotlib inline` or an import of pyplot."""
    formatters = pytest.importorskip("IPython.core.formatters")
    shown, _ = formatters.DisplayFormatter().format(minilm_scores.plot())
    assert shown["image/png"].startswith(b"\x89PNG")
    copy = pickle.loads(pickle.dumps(minilm_scores.plot()))
    assert copy._repr_png_() == shown["image/png"]  # the same table gives the same picture


def test_lines_are_layers_dots_are_heads_and_bands_are_their_nulls(minilm_scores):
    frame = minilm_scores.frame
    layers, heads = frame.filter(pl.col("head").is_null()), frame.drop_nulls("head")
    sizes = ("query_width", "key_width", "rank")
    of_layers, of_heads = (gaussian_null(*rows.select(sizes).row(0)) for rows in (layers, heads))
    for ax, score in zip(minilm_scores.plot().axes, ("symmetry", "directionality"), strict=True):
        x, y = line_of(ax, "all-MiniLM-L6-v2  encoder").get_xydata().T
        assert x.tolist() == layers["layer"].to_list() and y.tolist() == layers[score].to_list()
        dots = ax.collections[0].get_offsets()
        assert sorted(dots[:, 1].tolist()) == sorted(heads[score].to_list())
        assert abs(dots[:, 0] - heads["layer"].to_numpy()).max() < 0.5  # beside their own layer
        mean = 1 / layers["query_width"][0] if score == "symmetry" else 0
        (band,) = ax.patches
        assert band.get_height() == pytest.approx(2 * 1.96 * getattr(of_layers, f"{score}_std"))
        assert band.get_y() + band.get_height() / 2 == pytest.approx(mean)
        dotted = [line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == ":"]
        margin = 1.96 * getattr(of_heads, f"{score}_std")
        assert dotted == pytest.approx([mean - margin, mean + margin])


def test_models_of_different_depth_are_drawn_over_relative_depth(minilm_scores, smollm2):
    decoder = attngeo.score(smollm2, layers=[0, 10, 29], heads=False, folded=False, model="SmolLM2")
    ax, _ = (minilm_scores + decoder).plot().axes
    assert line_of(ax, "all-MiniLM-L6-v2  encoder").get_xdata() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert line_of(ax, "SmolLM2  decoder").get_xdata() == pytest.approx([0, 10 / 29, 1])


def test_an_encoder_is_blue_and_a_decoder_orange_in_any_order(pair_scores):
    encoder, decoder = (attngeo.ScoreTable(pair_scores.frame.filter(stack=name)) for name in ("encoder", "decoder"))
    for table in (encoder + decoder, decoder + encoder):
        ax = table.plot().axes[0]
        assert [line_of(ax, name).get_color() for name in ("encoder", "decoder")] == [BLUE, ORANGE]
    twice = (encoder + attngeo.ScoreTable(encoder.frame.with_columns(model=pl.lit("copy")))).plot().axes
    assert line_of(twice[0], "encoder").get_color() != line_of(twice[0], "copy  encoder").get_color()
    assert [len(ax.patches) for ax in twice] == [1, 1]  # models of the same shape share one band


def test_a_table_without_heads_and_nulls_has_lines_only():
    table = attngeo.score(bundled("encoder"), heads=False, nulls=False)
    for ax in table.plot().axes:
        assert not ax.patches and not any(len(dots.get_offsets()) for dots in ax.collections)
    (symmetry, _) = scores_section(table.frame).figures
    assert [trace.get("legendgroup") for trace in panel_traces(symmetry, 0)] == ["layer null", "layers"]
    assert symmetry.table["chance_std"] == [None] * 4


def test_a_page_shows_the_layers_heads_and_nulls_of_the_table(pair_scores, smollm2_scores):
    frame = (pair_scores + smollm2_scores).frame
    nulls = layer_nulls(frame), head_nulls(frame)
    scores = ("symmetry", "symmetry_rope", "directionality", "directionality_rope")
    for figure, score in zip(scores_section(frame).figures, scores, strict=True):
        assert figure.id == f"scores-{score.replace('_', '-')}"
        shown = frame.drop_nulls(score)
        for panel, part in enumerate(shown.partition_by("model", "stack", maintain_order=True)):
            band, _, low, high, dots, line = panel_traces(figure, panel)
            forms, single = part.filter(pl.col("head").is_null()), part.drop_nulls("head").sort("layer", "head")
            assert line["x"] == forms["layer"].to_list()
            same(line["y"], forms[score])
            same(dots["y"], single[score])
            assert dots["customdata"] == [f"L{n}H{h}" for n, h in single.select("layer", "head").rows()]
            assert np.rint(dots["x"]).tolist() == single["layer"].to_list()
            key = part.select("model", "stack").row(0)
            ends = [min(band["y"]), max(band["y"])], [low["y"][0], high["y"][0]]
            for drawn, level in zip(ends, (levels[key][score] for levels in nulls), strict=True):
                same(drawn, [level.mean - 1.96 * level.std, level.mean + 1.96 * level.std])
            assert line["line"]["color"] == dots["marker"]["color"] == {"encoder": BLUE, "decoder": ORANGE}[key[1]]
        for name in (score, f"{score}_z"):
            same(sorted(figure.table[name]), sorted(shown[name]))


def test_maps_hold_every_score_and_one_is_visible(minilm_scores):
    frame = minilm_scores.frame
    (figure,) = maps_section(frame).figures
    traces = figure.plotly["data"]
    (menu,) = figure.plotly["layout"]["updatemenus"]
    assert [trace["name"] for trace in traces] == [button["label"] for button in menu["buttons"]]
    assert [trace["visible"] for trace in traces] == [True] + [False] * (len(traces) - 1)
    for number, button in enumerate(menu["buttons"]):
        assert np.flatnonzero(button["args"][0]["visible"]).tolist() == [number]
    heads = frame.drop_nulls("head").sort("layer", "head")
    floats = [name for name, kind in frame.schema.items() if kind == pl.Float64 and heads[name].null_count() < 72]
    floats = [name for name in floats if "_chance" not in name]  # one value for all heads of a model
    assert len(traces) == len(floats)
    for name in floats:
        expected = heads[name].to_numpy().reshape(6, 12)
        found = [trace for trace in traces if np.allclose(np.array(trace["z"], float), expected, rtol=1e-4, atol=1e-12)]
        assert len(found) == 1, name
        signed = "p" not in name.split("_") and not name.startswith(("rank", "norm"))
        assert (found[0]["zmin"] == -found[0]["zmax"]) == signed
        same(figure.table[name], heads[name])
    assert traces[0]["customdata"][4][9] == "L4H9"


def test_a_pruned_head_is_a_gap_and_a_head_without_a_score_is_explained(minilm_scores):
    frame = minilm_scores.frame
    one, third = (pl.col("layer") == 2) & (pl.col("head") == 3), pl.col("head") == 3
    section = maps_section(frame.filter(~one.fill_null(False)))
    first, *_, cross = section.figures[0].plotly["data"]
    assert first["z"][2][3] is None and first["customdata"][2][3] is None
    assert sum(value is None for row in first["z"] for value in row) == 1
    # White would be a score of 0: a cross marks the gap, whichever score is chosen.
    assert (cross["x"], cross["y"]) == ([3], [2]) and section.reading.endswith(" A cross marks a cell without a head.")
    (menu,) = section.figures[0].plotly["layout"]["updatemenus"]
    assert all(button["args"][0]["visible"][-1] for button in menu["buttons"])
    undefined = frame.with_columns(pl.when(third).then(None).otherwise("symmetry").alias("symmetry"))
    assert "An empty cell is a head without a score" in maps_section(undefined).reading
    assert "empty cell" not in maps_section(frame).reading


def test_models_lie_before_the_published_ones(pair_scores, minilm_scores):
    summary, published = (pair_scores + minilm_scores).summary(), list_published(caution=False)
    (figure,) = plane_section(summary, published).figures
    *behind, bars, encoder, _, decoder, _, minilm = figure.plotly["data"]
    assert sum(len(trace["x"]) for trace in behind) == published.height
    assert [trace["marker"]["color"] for trace in (*behind, encoder, decoder)] == [BLUE, ORANGE] * 2
    rows = summary.filter(pl.col("level") == "layer").rows(named=True)
    for trace, row in zip((encoder, decoder, minilm), rows, strict=True):
        same(trace["y"] + trace["x"], [row["symmetry_median"], row["directionality_median"]])
    same(bars["y"][3:], [rows[0]["symmetry_q25"], rows[0]["symmetry_q75"]])
    assert len({trace["marker"]["symbol"] for trace in (encoder, decoder, minilm)}) == 3
    last, table = published.row(-1, named=True), figure.table
    assert (table["model"][-1], table["stack"][-1]) == (last["hub_id"], last["stack"])
    same(table["symmetry"][-1], last["symmetry"])
    assert table["published"].count(False) == 3


def test_norms_and_spectra_are_those_of_the_forms(encoder_forms):
    norms, spectra = head_forms_section(encoder_forms).figures
    for panel, form in enumerate(encoder_forms):
        _, threshold, dots = panel_traces(norms, panel)
        same(dots["y"], form.row_norms)
        same(dots["x"], form.column_norms)
        same((threshold["x"][0], threshold["y"][-1]), (form.column_threshold, form.row_threshold))
        _, symmetric, skew = panel_traces(spectra, panel)
        same(symmetric["y"], form.symmetric / form.norm)
        same(skew["y"], form.skew / form.norm)
        assert sum(y * y for y in symmetric["y"]) == pytest.approx((1 + form.symmetry) / 2, abs=1e-3)
        assert form.label in norms.plotly["layout"]["annotations"][panel]["text"]
    same(spectra.table["symmetric"], np.concatenate([form.symmetric for form in encoder_forms]))


def test_heads_of_several_models_are_told_apart():
    forms = [form for name in ("encoder", "decoder") for form in head_forms(bundled(name), [(name, 0, 0)])]
    figures = head_forms_section(forms).figures
    assert [figure.id for figure in figures] == ["forms-norms", "forms-spectra", "forms-norms-2", "forms-spectra-2"]
    titles = [figure.plotly["layout"]["annotations"][0]["text"].split("<br>")[0] for figure in figures]
    assert titles == ["<b>bundled/encoder"] * 2 + ["<b>bundled/decoder"] * 2
    assert head_forms_section([]).figures == ()
