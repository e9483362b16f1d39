"""The notebook widget drawn in a browser, as a notebook draws it: its module is imported and `render` is called."""

from __future__ import annotations

import attngeo

PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"></head><body><div id="cell"></div></body></html>"""
RENDER = """async ([module, css, data]) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const address = URL.createObjectURL(new Blob([module], { type: "text/javascript" }));
  const { default: widget } = await import(address);
  const end = await widget.render({ model: { get: () => data }, el: document.getElementById("cell") });
  return typeof end;
}"""


def test_the_widget_draws_a_head(open_page, tmp_path):
    organization = attngeo.organize(attngeo.capture(attngeo.bundled("encoder"), "The sea was calm."))
    view = organization.view()
    path = tmp_path / "cell.html"
    path.write_text(PAGE, "utf-8")
    watched = open_page(path)
    assert watched.page.evaluate(RENDER, [view._esm, view._css, view.data]) == "function"
    cell = watched.page.locator("#cell .attention")
    first = cell.get_attribute("data-head")
    watched.page.locator(".head-list select").select_option(label="L3H2")
    assert cell.get_attribute("data-head") == "L3H2" != first
    assert watched.page.locator(".matrix canvas").bounding_box()["height"] > 100
    watched.clean()
