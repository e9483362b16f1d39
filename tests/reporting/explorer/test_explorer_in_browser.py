"""The explorer in a browser: from typing to the picture, two heads, two texts, and the report of what is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from attngeo.reporting.explorer import ExplorerServer
from tests.reporting.conftest import Watched


@pytest.fixture
def opened(chromium: Any, server: ExplorerServer) -> Iterator[Watched]:
    context = chromium.new_context(viewport={"width": 1300, "height": 1000}, accept_downloads=True)
    watched = Watched.open(context, server.address)
    yield watched
    assert watched.requests == []
    context.close()


@pytest.fixture
def page(opened: Watched) -> Any:
    return opened.page


def organised(page: Any, side: str, number: int) -> Any:
    return page.wait_for_selector(f"section[aria-label='Panel, {side}'][data-ready='{number}']", timeout=60_000)


def test_from_typing_to_picture(page, opened):
    page.keyboard.type("The sea was calm <b>&amp; cold</b>.")
    page.keyboard.press("Enter")
    organised(page, "left", 1)
    assert page.locator(".matrix canvas").count() == 1
    assert "16 heads" in page.locator("[role=status]").first.text_content()
    assert page.locator("main b").count() == 0
    picked = page.locator(".attention").first
    first = picked.get_attribute("data-head")
    page.locator(".head-list select").first.select_option(label="L2H1")
    assert picked.get_attribute("data-head") == "L2H1" != first
    # The same head stays for the next text.
    page.locator("textarea").first.fill("Another text is organised.")
    page.locator("button:has-text('Organise')").first.click()
    organised(page, "left", 2)
    assert page.locator(".attention").first.get_attribute("data-head") == "L2H1"
    opened.clean()


def test_two_heads_and_two_texts_side_by_side(page, opened):
    page.keyboard.type("A man and the sea.")
    page.keyboard.press("Enter")
    organised(page, "left", 1)
    page.select_option("#beside", "head")
    organised(page, "right", 1)
    assert page.locator("textarea:visible").count() == 1
    left, right = page.locator(".attention").all()
    page.locator(".head-list select").nth(1).select_option(label="L3H3")
    assert right.get_attribute("data-head") == "L3H3" != left.get_attribute("data-head")
    boxes = [one.bounding_box() for one in page.locator("section").all()]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[1]["x"] > boxes[0]["x"] + boxes[0]["width"] - 1
    page.select_option("#beside", "text")
    page.locator("textarea").nth(1).fill("A second text, which is longer than the first one was.")
    page.locator("textarea").nth(1).press("Enter")
    organised(page, "right", 2)
    labels = [one.get_attribute("aria-label") for one in page.locator(".matrix canvas").all()]
    assert len(labels) == 2 and labels[0].split(",")[1] != labels[1].split(",")[1]
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    opened.clean()


def test_an_error_is_said_in_the_page_and_the_report_is_saved(page, tmp_path):
    page.locator("textarea").first.fill("  ")
    page.locator("textarea").first.press("Enter")
    assert "empty" in page.locator("[role=status].wrong").first.text_content()
    page.locator("textarea").first.fill("The report of this text is saved.")
    page.locator("textarea").first.press("Enter")
    organised(page, "left", 1)
    with page.expect_download(timeout=90_000) as saved:
        page.locator("button:has-text('Save the report')").first.click()
    saved.value.save_as(tmp_path / "report.html")
    assert "Organised attention" in (tmp_path / "report.html").read_text("utf-8")
    page.locator("textarea").first.fill("word " * 1500)
    page.locator("textarea").first.press("Enter")
    page.wait_for_selector("[role=status].wrong", timeout=60_000)
    assert "truncate" in page.locator("[role=status]").first.text_content()
