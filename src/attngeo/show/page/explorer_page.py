"""`explorer_html`: the page on which a reader types texts and looks at the organised attention of a model."""

from __future__ import annotations

from attngeo.errors import AttngeoError
from attngeo.show.page.assets import content_policy, joined_script, json_block, page_style, read_asset


def explorer_html(name: str, most_characters: int, version: str = "") -> str:
    """Return the page of the explorer.

    name: of the model
    most_characters: that a text may have

    >>> "<title>Explore org/name</title>" in explorer_html("org/name", 20_000)
    True
    """
    try:
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError:
        raise AttngeoError("the explorer needs plotly and jinja2: pip install 'attngeo[report]'") from None
    script = joined_script("explore")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return template.from_string(read_asset("explore.html")).render(
        policy=content_policy(script, requests="'self'"),
        version=version,
        name=name,
        style=Markup(page_style() + read_asset("explore.css")),
        data=Markup(json_block({"mostCharacters": most_characters})),
        script=Markup(script),
    )
