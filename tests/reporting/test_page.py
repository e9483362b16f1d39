"""The report in a browser: everything drawn, nothing asked for, heads picked, themes, widths, hostile strings."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import attngeo
from attngeo.organization import NetworkTensor, organize
from attngeo.show.page.assets import json_block

HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    '"><svg onload=window.hacked=1>',
    "<!--<script>",
    "javascript:window.hacked=1",
    "%{x}<b>bold</b>",
    "]]>&amp;{{ 7 * 7 }}{% raw %}",
    "\u2028\u202eright to left\x00\x1b[31m",
    "=HYPERLINK(1)",
]


def test_every_figure_is_drawn_without_an_error_or_a_request(pair_report, open_page):
    opened = open_page(pair_report).ready()
    ids = opened.page.evaluate("attngeo.page.data.figures.map((figure) => figure.id)")
    assert len(ids) >= 15
    for name in ids:
        assert opened.page.locator(f"#{name} svg.main-svg").count() > 0, name
    assert opened.page.locator("section").count() == opened.page.locator("nav a").count()
    style = "(selector) => getComputedStyle(document.querySelector(selector)).display"
    assert opened.page.evaluate(style, ".head-map") == "grid" and opened.page.evaluate(style, ".controls") == "flex"
    assert opened.page.locator(".verdicts p").count() == 2
    assert "clearly symmetric (median 0.60" in opened.page.locator(".verdicts").inner_text()
    opened.clean()


def test_the_policy_of_the_page_refuses_other_scripts(pair_report, open_page):
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', pair_report.read_text("utf-8"))
    assert policy and "unsafe-eval" not in policy[1] and "default-src &#39;none&#39;" in policy[1]
    opened = open_page(pair_report).ready()
    opened.page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.hacked = 1";
        document.body.append(script);
        document.body.insertAdjacentHTML("beforeend", "<img src='data:,' onerror='window.hacked = 2'>");
    }""")
    assert opened.page.evaluate("window.hacked") is None
    opened.page.evaluate("""() => new Promise((done) => {
        const script = document.createElement("script");
        const text = "try { eval('window.hacked = 3') } catch { window.refused = true }";
        script.src = URL.createObjectURL(new Blob([text]));
        script.onload = done;
        document.body.append(script);
    })""")
    assert opened.page.evaluate("[window.hacked, window.refused]") == [None, True]


def test_a_head_is_picked_from_list_map_tree_link_and_figure(pair_report, open_page):
    opened = open_page(pair_report, "#L2H1").ready()
    view = opened.page.locator("#attention-view")
    shown = lambda: view.get_attribute("data-head")  # noqa: E731
    assert shown() == "L2H1"
    view.locator("select").first.select_option(label="L0H3")
    assert shown() == "L0H3" and opened.page.url.endswith("#L0H3")
    view.locator(".head-map button[aria-label=L3H2]").click()
    assert shown() == "L3H2"
    opened.page.keyboard.press("ArrowLeft")
    assert shown() == "L3H1"
    box = view.locator(".head-tree canvas").bounding_box()
    view.locator(".head-tree canvas").click(position={"x": box["width"] - 3, "y": 40})
    order = opened.page.evaluate("attngeo.page.views[0].data.trees[2].order")
    heads = opened.page.evaluate("attngeo.page.views[0].data.heads")
    assert shown() == heads[order[-1]]
    opened.page.evaluate("location.hash = '#2-L1H1'")
    opened.page.wait_for_selector("#n2-attention-view[data-head=L1H1]")
    opened.page.evaluate("document.getElementById('head-map-1').querySelector('.plot').emit('plotly_click',"
                         "{points: [{customdata: 'L1H2'}]})")  # fmt: skip
    assert shown() == "L1H2"
    opened.clean()


def test_pointing_at_the_matrix_reads_its_values(tmp_path, open_page):
    array = np.zeros((4, 4, 2), np.float32)
    array[:] = np.eye(4)[:, :, None]
    array[0, 3] = 0.5
    tensor = NetworkTensor(
        array, queries=tuple("abcd"), keys=tuple("wxyz"), heads=("L0H0", "L0H1"), stage="probabilities"
    )
    opened = open_page(attngeo.report(organize(tensor), tmp_path / "report.html")).ready()
    page = opened.page
    page.locator("#attention-view select").nth(1).select_option("given")
    page.locator(".matrix canvas").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".readout").inner_text() == "query a (position 0), key w (position 0): 1"
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.locator(".readout").inner_text() == "query a (position 0), key z (position 3): 0.5"
    place = page.evaluate("""() => {
        const { left, top, cell } = attngeo.page.views[0].layout;
        return { x: left + 1.5 * cell[1], y: top + 1.5 * cell[0] };
    }""")
    page.locator(".matrix canvas").hover(position=place)
    assert page.locator(".readout").inner_text().startswith("query b (position 1), key x (position 1)")
    opened.clean()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_switch(scheme, pair_report, open_page):
    opened = open_page(pair_report, color_scheme=scheme).ready()
    background = "getComputedStyle(document.body).backgroundColor"
    colours = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}
    other = "dark" if scheme == "light" else "light"
    assert opened.page.evaluate(background) == colours[scheme]
    opened.page.locator("#theme").click()
    assert opened.page.evaluate(background) == colours[other]
    text = opened.page.locator("#scores-symmetry .xtick text").first
    assert text.evaluate("(one) => getComputedStyle(one).fill") == opened.page.evaluate(
        "getComputedStyle(document.body).color"
    )
    opened.clean()


def test_nothing_is_wider_than_a_phone(pair_report, open_page):
    opened = open_page(pair_report, viewport={"width": 390, "height": 800}).ready()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    opened.clean()


def test_figures_take_the_width_of_a_page_that_is_narrowed_and_widened(pair_report, open_page):
    opened = open_page(pair_report, viewport={"width": 1200, "height": 800}).ready()
    for width in (390, 1200):
        opened.page.set_viewport_size({"width": width, "height": 800})
        for _ in range(100):  # a figure follows a moment later
            figures = opened.page.evaluate(
                "attngeo.page.figures.map(({ root, plot }) => [plot._fullLayout.width, root.clientWidth])"
            )
            if all(abs(drawn - room) <= 1 for drawn, room in figures):
                break
            opened.page.wait_for_timeout(100)
        assert all(abs(drawn - room) <= 1 and width - 60 < room <= width for drawn, room in figures), figures
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.clean()


def test_the_buttons_of_figures_work_offline_and_cover_no_title(pair_report, open_page):
    opened = open_page(pair_report).ready()
    titles = opened.page.locator(".modebar-btn").evaluate_all("buttons => buttons.map((b) => b.dataset.title)")
    assert set(titles) == {"Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}  # none that shares data
    touched = open_page(pair_report, viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True).ready()
    assert touched.page.locator("svg.main-svg").count() > 0 and touched.page.locator(".modebar-btn").count() == 0
    touched.clean()


def test_a_long_name_is_whole_and_fits_a_phone(smollm2, tmp_path, open_page):
    name = "an-organisation/" + "Model-with-a-very-long-name-" * 4 + "NoPlaceToBreakTheLineInThisPartOfTheName"
    table = attngeo.score(smollm2, layers=[0, 29])  # the names of its scores are long, too
    table = replace(table, frame=table.frame.with_columns(pl.lit(name).alias("model")))
    path = attngeo.report(table, tmp_path / "report.html")
    opened = open_page(path, viewport={"width": 390, "height": 800}).ready()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert opened.page.locator("#theme").bounding_box()["x"] < 340
    for place in ("#scores-symmetry .annotation-text", "#maps-1 .annotation-text"):
        assert opened.page.locator(place).first.text_content().replace(" ", "") == f"{name},decoder"
    opened.clean()


def test_panels_lie_side_by_side_where_there_is_room(pair_report, open_page):
    columns = """() => new Set(Object.entries(document.querySelector("#forms-norms .plot").layout)
        .filter(([name]) => /^xaxis/.test(name)).map(([, axis]) => axis.domain[0])).size"""
    opened = open_page(pair_report, viewport={"width": 1280, "height": 800}).ready()
    assert opened.page.evaluate(columns) == 3
    opened.page.set_viewport_size({"width": 390, "height": 800})
    opened.page.wait_for_selector("#forms-norms .plot[style*='1235px']")  # three panels below one another
    assert opened.page.evaluate(columns) == 1
    opened.clean()


def test_hostile_strings_stay_text(tmp_path, open_page):
    count = len(HOSTILE)
    rng = np.random.default_rng(0)
    tensor = NetworkTensor(
        rng.random((count, count, 4), np.float32),
        queries=tuple(HOSTILE),
        keys=tuple(HOSTILE),
        heads=("L0H0", HOSTILE[0], HOSTILE[1], HOSTILE[2]),
        name=HOSTILE[0],
        stage="probabilities",
    )
    records = [{"step": step, "symmetry": [0.1], "directionality": [0.2], "note": HOSTILE[0]} for step in range(3)]
    path = attngeo.report([organize(tensor), records], tmp_path / "report.html")
    opened = open_page(path).ready()
    for head in range(4):
        opened.page.evaluate("(head) => attngeo.page.views[0].pick(head)", head)
    opened.page.locator(".matrix canvas").focus()
    for _ in range(2 * count):
        opened.page.keyboard.press("ArrowRight")
    for details in opened.page.locator("details.data summary").all():
        details.click()
    assert opened.page.evaluate("window.hacked") is None
    assert opened.page.locator("main img, main svg[onload], main b").count() == 0
    assert "onerror" in opened.page.locator("#attention-view select").first.inner_text()
    opened.clean()


def test_json_cannot_leave_its_block():
    text = json_block({"tokens": HOSTILE, "lone surrogate": "\ud800"})
    assert "<" not in text
    assert json.loads(text)["tokens"] == HOSTILE


def test_figures_are_saved_as_svg_and_csv(pair_report, open_page):
    page = open_page(pair_report).ready().page
    for place in ("#scores-symmetry", "#attention-view"):
        with page.expect_download() as download:
            page.locator(f"{place} button", has_text="SVG").click()
        content = download.value.path().read_text("utf-8")
        assert content.startswith("<svg") and content.rstrip().endswith("</svg>")
        with page.expect_download() as download:
            page.locator(f"{place} button", has_text="CSV").click()
        rows = download.value.path().read_text("utf-8").splitlines()
        assert len(rows) > 4 and len({row.count(",") for row in rows if '"' not in row}) == 1


def test_a_browser_that_cannot_unpack_says_so(pair_report, open_page):
    opened = open_page(pair_report, script="delete window.DecompressionStream")
    message = opened.page.locator("#old-browser")
    message.wait_for(state="visible")
    assert "DecompressionStream" in message.inner_text()
    assert opened.page.locator(".verdicts").is_visible()
    opened.clean()


def test_the_page_prints_in_light_colours_and_fits_the_paper(pair_report, open_page, tmp_path):
    opened = open_page(pair_report, color_scheme="dark").ready()
    opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    opened.page.emulate_media(media="print")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    widths = opened.page.evaluate("[...document.querySelectorAll('.plot .main-svg')].map((svg) => svg.clientWidth)")
    assert max(widths) <= 700
    heights = opened.page.evaluate("[...document.querySelectorAll('figure')].map((one) => one.clientHeight)")
    assert max(heights) < 1016  # of A4 without its margins: no figure is divided between pages
    sizes = "[...document.querySelectorAll('.matrix canvas')].map((one) => [one.width, one.clientWidth])"
    assert opened.page.evaluate(sizes) == [[1680, 560]] * 2  # three dots for each pixel
    assert not opened.page.locator("#theme").is_visible()
    opened.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    opened.page.emulate_media(media="screen")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    opened.clean()
