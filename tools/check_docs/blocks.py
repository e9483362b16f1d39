"""The code blocks of a Markdown page, with the output that the page shows and the marks in the comment before them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from textwrap import dedent
from typing import Any

LANGUAGES = ("console", "python")
NEEDS = ("corpus", "gpu", "hub")
FENCE = re.compile(r"^( *)(`{3,}|:{3,})(.*)$")
MARK = re.compile(r"^(slow|needs|varies|setup|file)\b:?\s*(.*)$", re.S)


@dataclass(frozen=True)
class Block:
    """A console or Python block of a page, or the content of a file that later blocks read.

    start, end:     the lines of the page that hold the code, from 0, without the fences
    shown:          what the page shows as output of a Python block, None without a text block behind it
    output:         (start, end) of the lines that hold it
    """

    page: str
    language: str
    code: str
    start: int
    end: int
    indent: int = 0
    shown: str | None = None
    output: tuple[int, int] | None = None
    slow: bool = False
    needs: str = ""
    varies: tuple[str, ...] = ()
    setup: str = ""
    file: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.start}"


class PageError(Exception):
    """A page that cannot be read as blocks: the message names the page and the line."""


def parse(text: str, page: str = "page.md") -> list[Block]:
    """Return the console and Python blocks of a page.

    >>> [block] = parse("<!-- slow -->\\n```python\\nprint(1)\\n```\\n\\n```text\\n1\\n```\\n")
    >>> block.code, block.shown, block.slow
    ('print(1)\\n', '1\\n', True)
    """
    lines = text.splitlines()
    blocks: list[Block] = []
    marks: list[str] = []
    place, last = 0, ""  # last: what stood before this line, "block" directly after a Python block
    while place < len(lines):
        line = lines[place]
        fence = FENCE.match(line)
        if line.lstrip().startswith("<!--"):
            end = next((n for n in range(place, len(lines)) if "-->" in lines[n]), len(lines) - 1)
            marks.append("\n".join(lines[place : end + 1]).strip()[4:].removesuffix("-->").strip())
            place, last = end + 1, ""
        elif fence and fence[2].startswith("`"):
            end = closing(lines, place, fence[2], page)
            language = fence[3].strip()
            code = dedent("".join(f"{row}\n" for row in lines[place + 1 : end]))
            if language in LANGUAGES or any(mark.startswith("file:") for mark in marks):
                found = read_marks(marks, f"{page}:{place + 1}")
                blocks.append(Block(page, language, code, place + 1, end, len(fence[1]), **found))
            elif language == "text" and last == "block":
                blocks[-1] = replace(blocks[-1], shown=code, output=(place + 1, end))
            elif code.startswith("$ ") or (language == "" and not code.startswith("{")):
                raise PageError(
                    f"{page}:{place + 1}: a block without a language; expected console, python, text or another"
                )
            place, last = end + 1, "block" if language == "python" else ""
            marks = []
        else:
            if line.strip():
                marks, last = [], ""
            place += 1
    return blocks


def closing(lines: list[str], place: int, ticks: str, page: str) -> int:
    for end in range(place + 1, len(lines)):
        if lines[end].strip() == ticks:
            return end
    raise PageError(f"{page}:{place + 1}: this block does not end")


def read_marks(comments: list[str], where: str) -> dict[str, Any]:
    """Return the fields of a block that comments such as `slow` and `needs: gpu` set."""
    fields: dict[str, Any] = {}
    for comment in comments:
        found = MARK.match(comment)
        if not found:
            raise PageError(f"{where}: unknown mark {comment!r}; expected slow, needs, varies, setup or file")
        kind, rest = found[1], found[2].rstrip()
        if kind == "slow":
            fields["slow"] = True
        elif kind == "needs":
            if rest not in NEEDS:
                raise PageError(f"{where}: needs {rest!r}; expected one of {', '.join(NEEDS)}")
            fields["needs"] = rest
        elif kind == "file":
            fields["file"] = rest
        elif kind == "varies":
            fields["varies"] = tuple(word.strip() for word in rest.split(","))
        else:
            fields["setup"] = dedent(comment.removeprefix("setup").lstrip("\n"))
    return fields


def commands(code: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output below it.

    A command goes on to the next line after a backslash and inside quotation marks.

    >>> commands("$ echo a \\\\\\n    b\\na b\\n$ true\\n")
    [('echo a \\\\\\n    b', 'a b\\n'), ('true', '')]
    """
    out: list[tuple[str, str]] = []
    lines = code.splitlines()
    place = 0
    while place < len(lines):
        if not lines[place].startswith("$ "):
            if not out:
                raise PageError(f"a console block begins with a command, after '$ '; found {lines[place]!r}")
            out[-1] = (out[-1][0], f"{out[-1][1]}{lines[place]}\n")
            place += 1
            continue
        command = lines[place][2:]
        place += 1
        while place < len(lines) and (command.endswith("\\") or open_quote(command)):
            command += f"\n{lines[place]}"
            place += 1
        out.append((command, ""))
    return out


def open_quote(command: str) -> str:
    """Return the quotation mark that a command leaves open, or an empty string."""
    quote, escaped = "", False
    for letter in command:
        if escaped:
            escaped = False
        elif letter == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
    return quote
