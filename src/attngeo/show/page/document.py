"""Pages as HTML documents that need nothing else, with their data, their scripts and plotly inside.

page_html       a report
explorer_html   the page of the explorer
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attngeo.show.page.assets import (
    content_policy,
    json_block,
    packed_plotly,
    page_script,
    page_style,
    page_template,
    read_asset,
)
from attngeo.show.page.section import Section


@dataclass(frozen=True)
class AttentionSection(Section):
    """The section in which a reader looks at the attention of single heads."""

    data: Mapping[str, Any] = field(default_factory=dict)  # as `attention_data` returns it

    @property
    def view(self) -> str:
        """The id of the element that shows the attention."""
        return f"{self.id}-view"


@dataclass(frozen=True)
class PageVerdict:
    """What the scores of one stack say, and whose they are."""

    name: str
    sentence: str


@dataclass(frozen=True)
class Page:
    """The content of a page, from top to bottom.

    >>> text = page_html(Page("Two <models>", sections=(Section("scores", "Scores", "How to read them."),)))
    >>> "Two &lt;models&gt;" in text, "How to read them." in text
    (True, True)
    """

    title: str
    verdicts: tuple[PageVerdict, ...] = ()
    doubts: tuple[str, ...] = ()  # what would make the verdicts wrong
    about: tuple[str, ...] = ()  # lines on what was measured
    sections: tuple[Section, ...] = ()
    views: Mapping[str, str] = field(default_factory=dict)  # section → attention section that its heads belong to
    version: str = ""  # of attngeo


def page_html(page: Page) -> str:
    """Return a page as HTML. All texts are escaped, and data is written as JSON that no text in it can leave."""
    template = page_template("page.html", "a report")
    attention = [section for section in page.sections if isinstance(section, AttentionSection)]
    numbers = {section.id: number for number, section in enumerate(attention)}
    figures = [
        {name: getattr(figure, name) for name in ("id", "label", "plotly", "table")}
        | {"view": numbers.get(page.views.get(section.id, ""), 0)}
        for section in page.sections
        for figure in section.figures
    ]
    script = page_script("start")
    return template.render(
        policy=content_policy(script),
        version=page.version,
        title=page.title,
        style=page_style(),
        verdicts=page.verdicts,
        doubts=page.doubts,
        about=page.about,
        sections=page.sections,
        data=json_block({"figures": figures, "views": [section.view for section in attention]}),
        views=[{"id": section.view, "data": json_block(section.data)} for section in attention],
        plotly=packed_plotly(),
        script=script,
    )


def explorer_html(name: str, most_characters: int, version: str = "") -> str:
    """Return the page of the explorer.

    name: of the model
    most_characters: that a text may have

    >>> "<title>Explore org/name</title>" in explorer_html("org/name", 20_000)
    True
    """
    template = page_template("explore.html", "the explorer")
    script = page_script("explore")
    return template.render(
        policy=content_policy(script, requests="'self'"),
        version=version,
        name=name,
        style=page_style() + read_asset("explore.css"),
        data=json_block({"mostCharacters": most_characters}),
        script=script,
    )
