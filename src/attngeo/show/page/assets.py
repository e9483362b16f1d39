"""The files of a page, from the folder `assets`, and the rules under which a browser runs them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attngeo.errors import AttngeoError

if TYPE_CHECKING:
    from jinja2 import Template

# Joined in this order into one script, so that a file may use what an earlier one defines.
SCRIPTS = ("data", "haar", "drawing", "matrix", "theme", "pickers", "attention", "figures", "page")


def read_asset(name: str) -> str:
    """Return the text of a file of the folder `assets`."""
    return files("attngeo.show.page").joinpath("assets", name).read_text("utf-8")


@cache
def page_script(start: str) -> str:
    """Return the script of a page: the functions of all pages, then the file `start`, which uses them."""
    parts = "\n".join(read_asset(f"{name}.js") for name in (*SCRIPTS, start))
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


@cache
def widget_script() -> str:
    """Return the functions of all pages as an ES module that draws attention in a notebook."""
    return "\n".join(read_asset(f"{name}.js") for name in (*SCRIPTS, "widget"))


def page_style() -> str:
    """Return the style sheet of a report; that of the page is last, so that its rules for phones and paper win."""
    return read_asset("attention.css") + read_asset("page.css")


def page_template(name: str, page: str) -> Template:
    """Return a file of the folder `assets` as a template that escapes what it is filled with; page: what it is for."""
    try:
        from jinja2 import Environment
    except ImportError:
        raise AttngeoError(f"{page} needs plotly and jinja2: pip install 'attngeo[report]'") from None
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(read_asset(name))


@cache
def packed_plotly() -> str:
    """Return plotly's script, compressed with gzip and written in base64."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise AttngeoError("a report needs plotly and jinja2: pip install 'attngeo[report]'") from None
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode("ascii")


def content_policy(script: str, requests: str = "'none'") -> str:
    """Return a content-security policy that allows this script and those it makes itself, and by default no request.

    requests: where the page may send requests to

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
    # A lone surrogate, as a damaged token may have, cannot be written as UTF-8.
    return text.replace("<", "\\u003c").encode("utf-8", "replace").decode()
