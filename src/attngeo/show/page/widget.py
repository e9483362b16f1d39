"""`attention_view`: the organised attention of a network in a notebook, without any server."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from attngeo.show.matrix_figures import slices_figure
from attngeo.show.page.assets import read_asset, widget_script
from attngeo.show.page.attention import attention_data

if TYPE_CHECKING:
    from attngeo.organization.organize import Organization


def attention_view(organization: Organization) -> Any:
    """Return a widget that shows any head, with its trees; a figure of a few heads where anywidget is not installed."""
    try:
        widget = _widget_class()
    except ImportError:
        return slices_figure(organization)
    return widget(data=attention_data(organization))


@cache
def _widget_class() -> Any:
    import anywidget
    import traitlets

    class AttentionWidget(anywidget.AnyWidget):
        """The view of attention of a report; `data` is what `attention_data` returns."""

        _esm = widget_script()
        _css = read_asset("attention.css") + read_asset("widget.css")
        data = traitlets.Dict().tag(sync=True)

    return AttentionWidget
