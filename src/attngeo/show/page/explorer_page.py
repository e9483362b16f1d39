"""`explorer_html`: the page on which a reader types texts and looks at the organised attention of a model."""

from __future__ import annotations

from attngeo.show.page.assets import content_policy, joined_script, json_block, page_style, page_template, read_asset


def explorer_html(name: str, most_characters: int, version: str = "") -> str:
    """Return the page of the explorer.

    name: of the model
    most_characters: that a text may have

    >>> "<title>Explore org/name</title>" in explorer_html("org/name", 20_000)
    True
    """
    template = page_template("explore.html", "the explorer")
    script = joined_script("explore")
    return template.render(
        policy=content_policy(script, requests="'self'"),
        version=version,
        name=name,
        style=page_style() + read_asset("explore.css"),
        data=json_block({"mostCharacters": most_characters}),
        script=script,
    )
