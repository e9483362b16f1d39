"""Pages as HTML documents that need nothing else, with their data, their scripts and plotly inside.

page_html       a report
explorer_html   the page of the explorer
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from attngeo.errors import AttngeoError
from attngeo.show.page import Section
from attngeo.version import __version__

# Joined in this order into one script, so that a file may use what an earlier one defines.
_SCRIPTS = ("data", "haar", "drawing", "matrix", "theme", "pickers", "attention", "figures", "page")


@dataclass(frozen=True)
class Page:
    """The content of a page, from top to bottom.

    >>> text = page_html(Page("Two <models>", sections=(Section("scores", "Scores", "How to read them."),)))
    >>> "Two &lt;models&gt;" in text, "How to read them." in text
    (True, True)
    """

    title: str
    verdicts: tuple[tuple[str, str], ...] = ()  # the name of each stack, and what its scores say
    doubts: tuple[str, ...] = ()  # what would make the verdicts wrong
    about: tuple[str, ...] = ()  # lines on what was measured
    sections: tuple[Section, ...] = ()


def page_html(page: Page) -> str:
    """Return a page as HTML. All texts are escaped, and data is written as JSON that no text in it can leave."""
    figures = [
        {name: getattr(figure, name) for name in ("id", "label", "plotly", "table")} | {"view": section.view}
        for section in page.sections
        for figure in section.figures
    ]
    views = {f"{one.id}-view": one.attention for one in page.sections if one.attention is not None}
    return _filled(
        "page.html",
        "a report",
        "start",
        page=page,
        style=_style(),
        data=json_block({"figures": figures, "views": list(views)}),
        views={id: json_block(data) for id, data in views.items()},
        plotly=packed_plotly(),
    )


def explorer_html(name: str, most_characters: int) -> str:
    """Return the page of the explorer.

    name: of the model
    most_characters: that a text may have

    >>> "<title>Explore org/name</title>" in explorer_html("org/name", 20_000)
    True
    """
    data, style = json_block({"mostCharacters": most_characters}), _style() + read_asset("explore.css")
    return _filled("explore.html", "the explorer", "explore", "'self'", name=name, style=style, data=data)


def _filled(template: str, what: str, start: str, requests: str = "'none'", **content: Any) -> str:
    """Return a template of the folder `assets` with its content, which is escaped, its script and its policy.

    what:     what the page is, for an error message
    start:    the last file of its script, which uses the others
    requests: where the page may send requests to
    """
    try:
        from jinja2 import Environment
    except ImportError:
        raise AttngeoError(f"{what} needs plotly and jinja2: pip install 'attngeo[report]'") from None
    script = f'(() => {{\n"use strict";\n{_script(start)}}})();\n'
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(read_asset(template))
    return page.render(policy=_content_policy(script, requests), version=__version__, script=script, **content)


def _content_policy(script: str, requests: str) -> str:
    """Return a content-security policy that allows this script and those it makes itself.

    Scripts need a matching hash or a blob: address; `eval` and inline handlers are refused. Plotly places its elements
    with style attributes and writes its style sheet at run time, so styles cannot be listed by hash.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return (
        f"default-src 'none'; script-src 'sha256-{digest}' blob:; style-src 'unsafe-inline'; "
        f"img-src data: blob:; connect-src {requests}; base-uri 'none'; form-action 'none'"
    )


def json_block(value: Any) -> str:
    r"""Return JSON that may stand inside a script element: no text in it can end the element or open a comment.

    >>> json_block({"token": "</script>"})
    '{"token":"\\u003c/script>"}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


@cache
def packed_plotly() -> str:
    """Return plotly's script, compressed with gzip and written in base64."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise AttngeoError("a report needs plotly and jinja2: pip install 'attngeo[report]'") from None
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode("ascii")


# ---- the folder `assets`


def read_asset(name: str) -> str:
    """Return the text of a file of the folder `assets`."""
    return files("attngeo.show.page").joinpath("assets", name).read_text("utf-8")


def _style() -> str:
    """Return the style sheet of a page; that of all pages is last, so that its rules for phones and paper win."""
    return read_asset("attention.css") + read_asset("page.css")


def _script(last: str) -> str:
    return "\n".join(read_asset(f"{name}.js") for name in (*_SCRIPTS, last))


def widget_assets() -> tuple[str, str]:
    """Return the ES module and the style sheet that show attention in a notebook."""
    return _script("widget"), read_asset("attention.css") + read_asset("widget.css")
