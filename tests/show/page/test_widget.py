"""The notebook widget: its module and its data draw a head in a browser; without anywidget there is a figure."""

from __future__ import annotations

import json
import sys

import pytest
from matplotlib.figure import Figure

import attngeo
from attngeo.show.page import widget as module


@pytest.fixture(scope="module")
def organization():
    return attngeo.organize(attngeo.capture(attngeo.bundled("encoder"), "The sea was calm."))


def test_the_widget_holds_what_a_notebook_needs(organization):
    pytest.importorskip("anywidget")
    view = organization.view()
    assert view.data["shape"] == list(organization.values.shape)
    assert json.loads(json.dumps(view.data)) == view.data
    assert "export default" in view._esm and ".attngeo-widget" in view._css


def test_without_anywidget_there_is_the_static_figure(organization, monkeypatch):
    module._widget_class.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    assert isinstance(organization.view(), Figure)
    module._widget_class.cache_clear()
