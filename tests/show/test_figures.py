"""What all figures have in common, on paper and on a page: they fit, and are valid, small, escaped and legible."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import polars as pl
import pytest
from matplotlib.text import Text as Words

from attngeo import charts, show
from attngeo.applications.prune.curve import LossCurve, LossPoint
from attngeo.charts import Axis, Band, Bar, Figure, Heatmap, Level, Line, Panel, Points, Text
from attngeo.show.matplotlib import drawn
from attngeo.show.page import PageFigure, Section, stack_name
from attngeo.show.plotly import described, in_lines
from attngeo.training import bundled_records
from attngeo.weights.scoring import list_published

HOSTILE = '<img src=x onerror="alert(1)"></script>%{x}&'

# ---- on a page


@pytest.fixture(scope="module")
def sections(request: pytest.FixtureRequest) -> list[Section]:
    """Every section of a page."""
    result = request.getfixturevalue
    table = result("pair_scores") + result("smollm2_scores")
    organization = result("organization")
    return [
        show.scores_section(table.frame),
        show.maps_section(table.frame),
        show.plane_section(table.summary(), list_published(caution=False)),
        show.rotary_section(table.frequencies, [result("smollm2_curves")]),
        show.head_forms_section(result("encoder_forms")),
        show.head_tree_section(organization),
        show.head_map_section(organization),
        show.sparsity_section(result("sparsity")),
        show.invariance_section(result("invariance")),
        show.training_section({"encoder": bundled_records("encoder")}),
        show.pruning_section(*result("pruning")),
        show.comparison_section(result("comparison")),
        show.model_map_section(result("three_models")),
    ]


def test_every_section_is_readable_and_has_figures(sections: list[Section]) -> None:
    figures = [figure for section in sections for figure in section.figures]
    for section in sections:
        assert section.figures, section.id
        assert 2 <= len(re.findall(r"[.!?](?: |$)", section.reading)) <= 6, section.reading
    for figure in figures:
        assert re.fullmatch(r"[a-z0-9-]+", figure.id)
        assert re.fullmatch(r"[A-Z].*[.?]", figure.label)
        assert len({len(values) for values in figure.table.values()}) == 1, figure.id
        assert any(trace.get("z") or [x for x in trace["x"] if x is not None] for trace in figure.plotly["data"])
    ids = [one.id for one in (*sections, *figures)]
    assert len(ids) == len(set(ids))


def test_descriptions_are_small_and_plotly_accepts_them_and_the_page_decides_on_colours(
    sections: list[Section],
) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    figures: list[PageFigure] = [figure for section in sections for figure in section.figures]
    for figure in figures:
        text = json.dumps([figure.plotly, figure.table], allow_nan=False)
        assert len(text) < 300_000, figure.id
        numbers = re.findall(r"(?<![\w.#-])-?\d+\.\d{6,}", text)
        assert not [number for number in numbers if len(number.strip("-0.")) > 8], figure.id
        graph_objects.Figure(json.loads(text)[0])  # raises for an unknown setting
        layout = figure.plotly["layout"]
        assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == "rgba(0,0,0,0)"
        texts = [layout["font"], *(note["font"] for note in layout["annotations"])]
        axes = [value for key, value in layout.items() if re.fullmatch(r"[xy]axis\d*", key)]
        assert not [key for part in (*texts, *axes) for key in part if "color" in key]
        for note in layout["annotations"]:  # the titles fit a phone
            assert max(map(len, re.sub("</?b>", "", note["text"]).split("<br>"))) <= 38, note["text"]


def test_text_of_a_figure_cannot_be_markup() -> None:
    bar, names = Bar(HOSTILE), [HOSTILE]
    common: dict[str, Any] = {"label": HOSTILE, "hover": "{name} {detail}", "details": names, "group": HOSTILE}
    series = [
        Line([0], [0], **common),
        Points([0], [0], names=names, shade=[0], bar=bar, **common),
        Band([0], [0], [1], label=HOSTILE),
        Level(0, label=HOSTILE),
        Text([0], [0], names),
    ]
    cells = Heatmap([[0]], (0, 1), label=HOSTILE, bar=bar, hover="{name}", names=[names])
    named = Axis(HOSTILE, categories=(HOSTILE,))
    chart = Figure(
        [Panel(HOSTILE, series, Axis(HOSTILE, ticks={0: HOSTILE})), Panel("", [cells], named, named)], choice=True
    )
    text = json.dumps(described(chart))
    assert "<img" not in text and "</script" not in text and "%{x}" not in text
    assert text.count("&lt;img") > 19


@pytest.mark.parametrize("name", ["x" * 80, "word " * 20, "é" * 34 + "-" * 35])
def test_long_names_are_whole_and_in_lines_of_a_phone(name: str) -> None:
    lines = in_lines(name, 34).split("<br>")
    assert max(map(len, lines)) <= 34
    assert "".join(lines).replace(" ", "") == name.replace(" ", "")


def test_names_are_escaped_after_they_are_broken_and_name_a_stack_once() -> None:
    assert in_lines("<" * 40, 34) == "&lt;" * 34 + "<br>" + "&lt;" * 6
    assert stack_name("org/encoder", "encoder") == "org/encoder"


# ---- on both


def test_paper_and_page_show_the_same_numbers() -> None:
    """One panel with each kind of series; the page says more of a point that is pointed at."""
    series = [
        Band((0, 1, 2), (0, 1, 2), (2, 3, 4), label="band"),
        Level(1.5, 0.5, label="level"),
        Level(0.25, upright=True),
        Line((0, 1, 2), (3, float("nan"), 5), charts.ORANGE, "line", dash="--", symbol="square", hover="{x}: {y:.1f}"),
        Line((), (), label="only in the legend"),
        Points((0, 2), (1, 4), charts.GREY, "points", "circle-open", hover="{name}", names=("a", "b<")),
        Points((1, 2), (2, 3), shade=(0, 7), limits=(0, 7), bar=Bar("layer")),
        Text((1,), (2,), ("$word",)),
    ]
    cells = Heatmap([[0.0, 1.0], [2.0, float("nan")]], (-2, 2), charts.DIVERGING, bar=Bar("value"))
    axis = Axis("x", ticks={0: "none", 2: "two"}, range=(-1, 3), reverse=True)
    chart = Figure([Panel("series", series, axis, Axis("y", zero=True)), Panel("cells", [cells])], columns=2)
    paper, image, *_ = drawn(chart).axes
    band, wide, line, upright, curve, entry, points, shaded, word, heat = (trace for trace in described(chart)["data"])
    assert (band["x"], band["y"]) == ([0, 1, 2, 2, 1, 0], [0, 1, 2, 4, 3, 2])
    assert (wide["x"], wide["y"]) == ([-1, 3, 3, -1], [1, 1, 2, 2]) and line["y"] == [1.5, 1.5]
    assert upright["x"] == [0.25, 0.25] and paper.patches[0].get_height() == 1
    assert curve["y"] == [3, None, 5] and curve["line"]["dash"] == "dash" and curve["hovertemplate"] == "%{x}: %{y:.1f}"
    lines = {entry.get_label(): entry for entry in paper.lines}
    np.testing.assert_array_equal(lines["line"].get_ydata(), [3, np.nan, 5])
    assert lines["line"].get_color() == curve["line"]["color"] == charts.ORANGE
    assert lines["level"].get_ydata() == [1.5, 1.5] and entry["x"] == [None]
    assert points["customdata"] == ["a", "b&lt;"] and points["name"] == "points"
    assert shaded["marker"]["color"] == [0, 7] == paper.collections[-1].get_array().tolist()
    assert (word["text"], paper.texts[-1].get_text()) == (["$word"], r"\$word")
    assert heat["z"] == [[0, 1], [2, None]] and np.isnan(np.ma.filled(image.images[0].get_array(), np.nan)[1, 1])
    assert (heat["zmin"], heat["zmax"]) == image.images[0].get_clim() == (-2, 2)
    layout = described(chart)["layout"]
    assert layout["xaxis"]["range"] == [3, -1] == list(paper.get_xlim())
    assert layout["xaxis"]["ticktext"] == ["none", "two"] == [tick.get_text() for tick in paper.get_xticklabels()]
    assert layout["yaxis"]["rangemode"] == "tozero" and paper.get_ylim()[0] == 0
    named = [trace["name"] for trace in described(chart)["data"] if trace.get("showlegend")]
    assert set(named) == {"band", "level", "line", "only in the legend", "points"}


# ---- on paper


def curve(methods: int) -> LossCurve:
    points = [
        LossPoint(f"method {number}", heads, heads / 16, refit, 3.0 + 0.1 * heads + number, seed)
        for number in range(methods)
        for heads in (4, 8)
        for refit in (False, True)
        for seed in range(2)
    ]
    return LossCurve("a model with a very long name/" + "x" * 30, "masked tokens", 3.0, tuple(points))


def atlas(models: int) -> Any:
    groups = ("encoders", "decoders")
    rows = [(f"org/model-{number}", "main", groups[number % 2], 0.1 * number, -0.25) for number in range(models)]
    points = pl.DataFrame(rows, schema=["model", "revision", "group", "x", "y"], orient="row")
    return show.atlas_figure(points, points.select("group", "x", "y"), "symmetry", "directionality")


FIGURES: dict[str, Callable[[Callable[[str], Any]], Any]] = {
    "score": lambda result: result("pair_scores").plot(),
    "heads": lambda result: result("organization").plot("heads"),
    "slices": lambda result: result("organization").plot("slices"),
    "trees": lambda result: result("organization").plot("trees"),
    "sparsity": lambda result: result("sparsity").plot(),
    "invariance": lambda result: result("invariance").plot(),
    "training": lambda _: show.training_figure(bundled_records("encoder")),
    "pruning": lambda _: curve(2).plot(),
    "all criteria": lambda _: curve(11).plot(),
    "comparison": lambda result: result("comparison").plot(),
    "atlas": lambda _: atlas(12),
    "many models": lambda _: atlas(20),  # of one name in the legend
    "map": lambda result: result("three_models").plot(),
    "rotary": lambda result: show.rotary_figure(result("smollm2_scores").frequencies, [result("smollm2_curves")]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_fits_a_column_or_a_page(name, request):
    """With legible letters; matplotlib's settings stay as they are."""
    before = dict(matplotlib.rcParams)
    figure = FIGURES[name](request.getfixturevalue)
    assert dict(matplotlib.rcParams) == before
    width, height = figure.get_size_inches()
    assert height < 9.5 and pytest.approx(width) in (charts.COLUMN, charts.PAGE)
    figure.draw_without_rendering()
    sides = [side for ax in figure.axes for side in (ax.xaxis, ax.yaxis)]
    ticks = {label for side in sides for label in side.get_ticklabels(which="both")}
    for text in figure.findobj(Words):
        if text.get_text().strip() and text.get_visible():
            assert 6 <= text.get_fontsize() <= 9, text
            if text not in ticks and text.get_in_layout():  # ticks outside of a panel are not drawn
                box = text.get_window_extent()
                assert box.x0 >= -2 and box.x1 <= figure.bbox.width + 2, text
                assert box.y0 >= -2 and box.y1 <= figure.bbox.height + 2, text


def test_a_figure_is_saved_as_vectors_with_fonts_that_publishers_accept() -> None:
    file = io.BytesIO()
    show.save_figure(curve(2).plot(), file, "pdf")
    assert b"/Type3" not in file.getvalue()
