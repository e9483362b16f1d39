"""The report in a browser: all is drawn, nothing asked for, heads picked and rebuilt; themes, widths, hostile text."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import attngeo
from attngeo.organization import NetworkTensor, organize, planted
from attngeo.organization.quantised import quantise
from attngeo.show.page.document import json_block

HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    '"><svg onload=window.hacked=1>',
    "<!--<script>",
    "%{x}<b>bold</b>",
    "]]>&amp;{{ 7 * 7 }}{% raw %}",
]


def test_every_figure_is_drawn_without_an_error_or_a_request(pair_page):
    page = pair_page.page
    ids = page.evaluate("attngeo.page.data.figures.map((figure) => figure.id)")
    assert len(ids) >= 15
    for name in ids:
        assert page.locator(f"#{name} svg.main-svg").count() > 0, name
    assert page.locator("section").count() == page.locator("nav a").count()
    style = "(selector) => getComputedStyle(document.querySelector(selector)).display"
    assert page.evaluate(style, ".head-map") == "grid" and page.evaluate(style, ".controls") == "flex"
    assert page.locator(".verdicts p").count() == 2
    assert "clearly symmetric (median 0.60" in page.locator(".verdicts").inner_text()
    buttons = page.locator(".modebar-btn").evaluate_all("buttons => buttons.map((b) => b.dataset.title)")
    assert set(buttons) == {"Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}  # none that shares data
    pair_page.clean()


def test_a_head_is_picked_from_list_map_tree_link_and_figure(pair_page):
    page = pair_page.page
    view = page.locator("#attention-view")
    shown = lambda: view.get_attribute("data-head")  # noqa: E731
    assert shown() == "L2H1"  # the address names it
    view.locator("select").first.select_option(label="L0H3")
    assert shown() == "L0H3" and page.url.endswith("#L0H3")
    view.locator(".head-map button[aria-label=L3H2]").click()
    assert shown() == "L3H2"
    page.keyboard.press("ArrowLeft")
    assert shown() == "L3H1"
    box = view.locator(".head-tree canvas").bounding_box()
    view.locator(".head-tree canvas").click(position={"x": box["width"] - 3, "y": 40})
    order = page.evaluate("attngeo.page.views[0].data.trees[2].order")
    assert shown() == page.evaluate("attngeo.page.views[0].data.heads")[order[-1]]
    page.evaluate("location.hash = '#2-L1H1'")
    page.wait_for_selector("#n2-attention-view[data-head=L1H1]")
    page.evaluate("document.getElementById('head-map-1').querySelector('.plot').emit('plotly_click',"
                  "{points: [{customdata: 'L1H2'}]})")  # fmt: skip
    assert shown() == "L1H2"
    page.evaluate("location.hash = '#L2H1'")
    pair_page.clean()


def test_figures_are_saved_as_svg_and_csv(pair_page):
    page = pair_page.page
    for place in ("#scores-symmetry", "#attention-view"):
        with page.expect_download() as download:
            page.locator(f"{place} button", has_text="SVG").click()
        content = download.value.path().read_text("utf-8")
        assert content.startswith("<svg") and content.rstrip().endswith("</svg>")
        with page.expect_download() as download:
            page.locator(f"{place} button", has_text="CSV").click()
        rows = download.value.path().read_text("utf-8").splitlines()
        assert len(rows) > 4 and len({row.count(",") for row in rows if '"' not in row}) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_switch(scheme, pages):
    page = pages[scheme].page
    background = "getComputedStyle(document.body).backgroundColor"
    colours = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}
    other = "dark" if scheme == "light" else "light"
    for shown in (scheme, other, scheme):
        assert page.evaluate(background) == colours[shown]
        text = page.locator("#scores-symmetry .xtick text").first
        colour = text.evaluate("(one) => getComputedStyle(one).fill")
        assert colour == page.evaluate("getComputedStyle(document.body).color")
        page.locator("#theme").click()
    page.locator("#theme").click()
    pages[scheme].clean()


def test_figures_take_the_width_of_a_page_that_is_narrowed_and_widened(pair_page):
    page = pair_page.page
    columns = """() => new Set(Object.entries(document.querySelector("#forms-norms .plot").layout)
        .filter(([name]) => /^xaxis/.test(name)).map(([, axis]) => axis.domain[0])).size"""
    for width, beside in ((390, 1), (1200, 3)):  # panels of a figure lie side by side where there is room
        page.set_viewport_size({"width": width, "height": 800})
        for _ in range(100):  # a figure follows a moment later
            figures = page.evaluate(
                "attngeo.page.figures.map(({ root, plot }) => [plot._fullLayout.width, root.clientWidth])"
            )
            if all(abs(drawn - room) <= 1 for drawn, room in figures) and page.evaluate(columns) == beside:
                break
            page.wait_for_timeout(100)
        assert all(abs(drawn - room) <= 1 and width - 60 < room <= width for drawn, room in figures), figures
        assert page.evaluate(columns) == beside
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    pair_page.clean()


def test_the_page_prints_in_light_colours_and_fits_the_paper(pages):
    page = pages["dark"].page
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    widths = page.evaluate("[...document.querySelectorAll('.plot .main-svg')].map((svg) => svg.clientWidth)")
    assert max(widths) <= 700
    heights = page.evaluate("[...document.querySelectorAll('figure')].map((one) => one.clientHeight)")
    assert max(heights) < 1016  # of A4 without its margins: no figure is divided between pages
    sizes = "[...document.querySelectorAll('.matrix canvas')].map((one) => [one.width, one.clientWidth])"
    assert page.evaluate(sizes) == [[1680, 560]] * 2  # three dots for each pixel
    assert not page.locator("#theme").is_visible()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    pages["dark"].clean()


def test_the_policy_of_the_page_refuses_other_scripts(pair_report, pair_page):
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', pair_report.read_text("utf-8"))
    assert policy and "unsafe-eval" not in policy[1] and "default-src &#39;none&#39;" in policy[1]
    page = pair_page.page
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.hacked = 1";
        document.body.append(script);
        document.body.insertAdjacentHTML("beforeend", "<img src='data:,' onerror='window.hacked = 2'>");
    }""")
    assert page.evaluate("window.hacked") is None
    page.evaluate("""() => new Promise((done) => {
        const script = document.createElement("script");
        const text = "try { eval('window.hacked = 3') } catch { window.refused = true }";
        script.src = URL.createObjectURL(new Blob([text]));
        script.onload = done;
        document.body.append(script);
    })""")
    assert page.evaluate("[window.hacked, window.refused]") == [None, True]
    assert all("Content Security Policy" in error for error in pair_page.errors)
    pair_page.errors.clear()


def test_a_long_name_is_whole_and_fits_a_phone(smollm2, tmp_path, open_page):
    name = "an-organisation/" + "Model-with-a-very-long-name-" * 4 + "NoPlaceToBreakTheLineInThisPartOfTheName"
    table = attngeo.score(smollm2, layers=[0, 29], model=name)  # the names of its scores are long, too
    path = attngeo.report(table, tmp_path / "report.html")
    opened = open_page(path, viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True).ready()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert opened.page.locator(".modebar-btn").count() == 0  # no button covers a title
    assert opened.page.locator("#theme").bounding_box()["x"] < 340
    for place in ("#scores-symmetry .annotation-text", "#maps-1 .annotation-text"):
        assert opened.page.locator(place).first.text_content().replace(" ", "") == f"{name},decoder"
    opened.clean()


def test_pointing_at_the_matrix_reads_its_values(tmp_path, open_page):
    array = np.zeros((4, 4, 2), np.float32)
    array[:] = np.eye(4)[:, :, None]
    array[0, 3] = 0.5
    tensor = NetworkTensor(array, queries=tuple("abcd"), keys=tuple("wxyz"), heads=("L0H0", "L0H1"))
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


def test_hostile_strings_stay_text(tmp_path, open_page):
    count = len(HOSTILE)
    values, heads = np.random.default_rng(0).random((count, count, 4), np.float32), ("L0H0", *HOSTILE[:3])
    tensor = NetworkTensor(values, queries=tuple(HOSTILE), keys=tuple(HOSTILE), heads=heads, name=HOSTILE[0])
    records = [{"step": step, "symmetry": [0.1], "directionality": [0.2], "note": HOSTILE[0]} for step in range(3)]
    opened = open_page(attngeo.report([organize(tensor), records], tmp_path / "report.html")).ready()
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
    text = json_block({"tokens": HOSTILE})
    assert "<" not in text and json.loads(text)["tokens"] == HOSTILE


def test_a_browser_that_cannot_unpack_says_so(pair_report, open_page):
    opened = open_page(pair_report, script="delete window.DecompressionStream")
    message = opened.page.locator("#old-browser")
    message.wait_for(state="visible")
    assert "DecompressionStream" in message.inner_text()
    assert opened.page.locator(".verdicts").is_visible()
    opened.clean()


# ---- the heads that a browser rebuilds

REBUILD = """([head, stop]) => {
  const { network } = attngeo.page.views[0];
  return Array.from(network.head(head, stop));
}"""


def check_rebuilt(page, given) -> None:
    """Fail if a head, from all or from few coefficients, is not that of Python's inverse Haar transform."""
    kept = quantise(given.values, given.trees)
    for stop in (len(kept.stops) - 1, len(kept.stops) // 2):
        rebuilt = kept.rebuilt(stop)  # [queries, keys, heads]
        for head in range(given.values.shape[2]):
            shown = np.reshape(page.evaluate(REBUILD, [head, stop]), given.values.shape[:2])
            np.testing.assert_allclose(shown, rebuilt[:, :, head], rtol=0, atol=3e-6 * np.abs(rebuilt).max())
    lost = np.square(given.values - kept.rebuilt()).sum((0, 1)) / np.square(given.values).sum((0, 1))
    assert lost.max() < 0.05 and lost.mean() < 0.01


def test_the_browser_rebuilds_axes_of_different_length_and_states_the_share_of_energy(open_page, tmp_path):
    """Queries, keys and heads of different numbers, so that mixed-up axes cannot go unnoticed."""
    labels = tuple(f"L{head // 5}H{head % 5}" for head in range(10))
    given = organize(NetworkTensor(planted((19, 26, 10), seed=3)[0].astype(np.float32), heads=labels, name="planted"))
    opened = open_page(attngeo.report(given, tmp_path / "report.html")).ready()
    check_rebuilt(opened.page, given)
    kept = quantise(given.values, given.trees)
    slider, held = opened.page.locator("input[type=range]"), opened.page.locator("output.held")
    texts = []
    for stop in range(len(kept.stops)):
        slider.fill(str(stop))
        texts.append(held.inner_text())
        assert texts[-1].startswith(f"{kept.counts[stop]:,} coefficient")
    assert len(set(texts)) == len(texts)
    assert float(texts[-1].split(" of the energy")[0].split()[-1].rstrip("%")) >= 99
    opened.clean()


# ---- the widget, drawn as a notebook draws it: its module is imported and `render` is called

CELL = """<!DOCTYPE html><html><head><meta charset="utf-8"></head><body><div id="cell"></div></body></html>"""
RENDER = """async ([module, css, data]) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const address = URL.createObjectURL(new Blob([module], { type: "text/javascript" }));
  const { default: widget } = await import(address);
  const end = await widget.render({ model: { get: () => data }, el: document.getElementById("cell") });
  return typeof end;
}"""


def test_the_widget_draws_a_head(open_page, tmp_path, encoder_organization):
    view = encoder_organization.view()
    (tmp_path / "cell.html").write_text(CELL, "utf-8")
    opened = open_page(tmp_path / "cell.html")
    assert opened.page.evaluate(RENDER, [view._esm, view._css, view.data]) == "function"
    cell = opened.page.locator("#cell .attention")
    first = cell.get_attribute("data-head")
    opened.page.locator(".head-list select").select_option(label="L3H2")
    assert cell.get_attribute("data-head") == "L3H2" != first
    assert opened.page.locator(".matrix canvas").bounding_box()["height"] > 100
    opened.clean()
