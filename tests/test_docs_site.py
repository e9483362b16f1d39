"""The pages of the documentation site: one per command, all in a table of contents; docstrings that Sphinx can read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sphinx")
pytest.importorskip("myst_parser")

import attngeo
from attngeo.cli.app import COMMANDS
from tools.site.docstrings import to_rst
from tools.site.notebooks import to_markdown
from tools.site.options import find, row_of, usage_of

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_a_page_with_its_options(command: str) -> None:
    text = (DOCS / "commands" / f"{command}.md").read_text("utf-8")
    found = find([command])
    names = [f"{command} {name}" for name in found.commands] if hasattr(found, "commands") else [command]
    assert set(re.findall(r"^```\{options\} (.*)$", text, re.M)) == set(names)
    listed = (DOCS / "commands" / "index.md").read_text("utf-8")
    assert f"[`attngeo {command}`]({command}.md)" in listed and re.search(rf"^{command}$", listed, re.M)


def test_every_page_is_in_a_table_of_contents() -> None:
    entries: set[Path] = set()
    for page in DOCS.rglob("*.md"):
        for toctree in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
            lines = [line for line in toctree.splitlines() if line and not line.startswith(":")]
            entries |= {page.parent / re.sub(r".*<(.*)>$", r"\1", line) for line in lines}
    pages = {path.with_suffix("") for suffix in ("md", "ipynb") for path in DOCS.rglob(f"*.{suffix}")}
    assert entries == pages - {DOCS / "index", DOCS / "releasing"}


def test_the_gallery_has_a_picture_of_every_kind_of_figure() -> None:
    pictures = set(re.findall(r"images/gallery/(\w+)\.png", (DOCS / "gallery.md").read_text("utf-8")))
    assert pictures == {path.stem for path in (DOCS / "images/gallery").glob("*.png")}
    kinds = {name.removesuffix("_figure") for name in attngeo.show.__all__ if name.endswith("_figure")}
    kinds -= {"save", "demo"}  # demo: images/demo.png
    renamed = {"score": "scores", "frequency": "frequencies", "rotary": "offsets", "gradient": "gradients"}
    renamed["model_map"] = "models"
    assert {renamed.get(kind, kind) for kind in kinds} == pictures


def test_the_options_of_a_command_are_those_of_its_help() -> None:
    command = find(["score"])
    assert usage_of(command) == ["[OPTIONS]", "REF..."]
    rows = dict(map(row_of, command.params))
    assert "--layers 0-5,8" in rows and all(rows.values())
    assert rows["--nulls, --no-nulls"].endswith(" Default: --nulls.")
    rows = dict(map(row_of, find(["prune"]).params))
    assert rows["--out DIR"].endswith(" Required.") and rows["--seed N"].endswith(" Default: 0.")
    assert "Default" not in rows["--uniform"]


def test_docstrings_become_restructuredtext() -> None:
    lines = [
        "Return `symmetric_init_` of |a| * b for every head_.", "", "    s = tr(M M)", "",
        "ref:   a folder or", "       a file", "a, b   two numbers", "", ">>> f(1)", "2",
    ]  # fmt: skip
    assert to_rst(lines) == [
        r"Return ``symmetric_init_`` of \|a\| \* b for every head\_.", "", "::", "", "    s = tr(M M)", "",
        "``ref``", "    a folder or a file", "``a``, ``b``", "    two numbers", "", ">>> f(1)", "2", "",
    ]  # fmt: skip


def test_a_picture_of_a_notebook_is_inside_the_page() -> None:
    output = {"data": {"image/png": "AAAA", "text/plain": "<Figure>"}}
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["f()"], "outputs": [output]},
    ]
    text = to_markdown({"cells": cells})
    assert text.startswith("# Title\n\n```python\nf()\n```") and 'src="data:image/png;base64,AAAA"' in text
    assert 'alt="&lt;Figure&gt;"' in text


def test_the_contents_of_a_page_fit_beside_it(chromium: Any, tmp_path: Path) -> None:
    """Furo shows the contents of a page on the right of windows from 82em (1312 pixels) on."""
    pytest.importorskip("furo")
    settings = {"html_theme": "furo", "html_static_path": [str(DOCS / "_static")], "html_css_files": ["attngeo.css"]}
    (tmp_path / "conf.py").write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
    (tmp_path / "index.rst").write_text(f"Page\n====\n\n{'word ' * 200}\n\nPart\n----\n\nText.\n")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(tmp_path), str(tmp_path / "site")]
    subprocess.run(command, check=True)
    page = chromium.new_page()
    page.goto((tmp_path / "site" / "index.html").as_uri())
    beyond = {}
    for width in (1280, 1312, 1313, 1400, 1488, 1551, 1552, 1640, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        beyond[width] = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    page.close()
    assert set(beyond.values()) == {0}, beyond
