"""The console and Python blocks of README.md and docs/ print what the pages show.

Blocks marked slow run in `make docs-check`; those that need a corpus, a GPU or the hub are only parsed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_docs import check_page, difference, pages, parse
from tools.check_docs.blocks import PageError, commands
from tools.check_docs.check import ROOT

BLOCKS = {page: parse((ROOT / page).read_text("utf-8"), page) for page in pages()}


@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if blocks])
def test_the_blocks_of_a_page_print_what_it_shows(models: Path, page: str) -> None:
    assert not check_page(page, slow=False)


def test_most_blocks_are_run() -> None:
    blocks = [block for blocks in BLOCKS.values() for block in blocks]
    assert len(blocks) >= 25
    assert sum(not block.needs for block in blocks) >= 0.8 * len(blocks)


# ---- the check itself


def page(text: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Return what is wrong with a page of this text."""
    from tools.check_docs import check

    (folder / "page.md").write_text(text, "utf-8")
    monkeypatch.setattr(check, "ROOT", folder)
    return check_page("page.md")


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ attngeo --version\nattngeo 0.0.0\n```\n",
        "```python\nprint(0.123)\n```\n\n```text\n0.124\n```\n",
        "```python\nundefined\n```\n",
        "<!-- needs: gpu -->\n```python\n1 +\n```\n",
    ],
)
def test_a_block_that_is_wrong_fails(text, monkeypatch, tmp_path):
    [failure] = page(text, monkeypatch, tmp_path)
    assert failure.startswith("page.md:")


def test_blocks_share_names_and_files(monkeypatch, tmp_path):
    text = (
        "<!-- setup\nn = 2\n-->\n```python\nopen('a', 'w').write('x' * n)\n```\n"
        "```console\n$ cat a; echo\nxx\n$ printf 'b\\nc\\n' | grep c\nc\n```\n"
        "<!-- needs: hub -->\n```console\n$ attngeo score org/name\n```\n"
    )
    assert page(text, monkeypatch, tmp_path) == []


def test_a_stale_output_is_written_by_update(monkeypatch, tmp_path):
    from tools.check_docs import check

    text = "Text.\n\n  ```python\n  print(1); print(2)\n  ```\n\n  ```text\n  3\n  ```\n\nMore.\n"
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setattr(check, "ROOT", tmp_path)
    assert check_page("page.md", update=True) == []
    assert (tmp_path / "page.md").read_text() == text.replace("  3\n", "  1\n  2\n")
    assert check_page("page.md") == []


@pytest.mark.parametrize(
    "text",
    [
        "<!-- slowly -->\n```python\n1\n```\n",
        "<!-- needs: money -->\n```python\n1\n```\n",
        "```python\n1\n",
        "```\n$ a\n```",
    ],
)
def test_marks_and_fences_that_are_wrong_are_refused(text):
    with pytest.raises(PageError):
        parse(text)


def test_commands_go_on_after_a_backslash_and_inside_quotation_marks():
    assert commands("$ a \\\n  b\nout\n$ c 'd\ne' f\n") == [("a \\\n  b", "out\n"), ("c 'd\ne' f", "")]


def test_numbers_are_compared_to_their_printed_digits():
    assert difference("0.4050839602548909", "0.4050839602548911") == ""  # rounding of the last of many digits
    assert difference("0.405084", "0.405085")
    assert difference("1,000", "1,001")
    assert difference("a 0.1", "b 0.1")
    assert difference("a", "attngeo: model: 1 of 14\na") == ""  # progress, on slow machines
    assert difference("took 1.25 s\n2", "took 13.5 s\n2", ("took",)) == ""
    assert difference("took 1.25 s\n2", "took 13.5 s\n3", ("took",))
