"""Docstrings of attngeo as reStructuredText.

The docstrings are plain text: single backticks for code, formulas indented by four spaces, and one line `name: meaning`
per parameter. Sphinx reads reStructuredText, in which stars, bars and final underscores mean something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

# The first line of a parameter: one or more names, then a colon or at least two spaces, then what they are.
PARAMETER = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?::\s+|\s{2,})(\S.*)$")


def to_rst(lines: list[str]) -> list[str]:
    """Return the lines of a docstring as reStructuredText.

    >>> to_rst(["Return `a_` * 2.", "", "a:  a number", "    or two"])
    ['Return ``a_`` \\\\* 2.', '', '``a``', '    a number or two', '']
    """
    return [line for block in blocks(lines) for line in (*converted(block), "")]


def blocks(lines: list[str]) -> Iterator[list[str]]:
    """Yield the runs of lines between empty lines."""
    for empty, run in groupby(lines, lambda line: not line.strip()):
        if not empty:
            yield list(run)


def converted(block: list[str]) -> list[str]:
    if block[0].lstrip().startswith(">>> "):
        return block
    if all(line.startswith("    ") for line in block):
        return ["::", "", *block]
    if PARAMETER.match(block[0]) and all(PARAMETER.match(line) or line.startswith("  ") for line in block):
        return parameters(block)
    text = [line for line in block if not line.startswith("    ")]
    if text != block and block[: len(text)] == text and not block[0].startswith(("* ", "- ")):
        # A heading followed by indented lines, such as a list of names.
        return [*map(escaped, text), "", "::", "", *block[len(text) :]]
    if text != block:  # columns made with spaces
        return ["::", "", *(f"    {line}" for line in block)]
    return [escaped(line) for line in block]


def parameters(block: list[str]) -> list[str]:
    """Return lines `name: meaning` as a definition list."""
    entries: list[tuple[str, list[str]]] = []
    for line in block:
        found = PARAMETER.match(line)
        if found:
            entries.append((found[1], [found[2]]))
        else:
            entries[-1][1].append(line.strip())
    lines = []
    for names, meaning in entries:
        term = ", ".join(f"``{name}``" for name in names.split(", "))
        lines += [term, f"    {escaped(' '.join(meaning))}"]
    return lines


def escaped(line: str) -> str:
    """Return one line of text with `code` as ``code``, and without other markup."""
    indent = line[: len(line) - len(line.lstrip())]
    bullet = "* " if line.lstrip().startswith("* ") else ""
    pieces = line[len(indent) + len(bullet) :].split("`")
    if len(pieces) % 2 == 0:  # an unpaired backtick, or code that continues on the next line
        return indent + bullet + plain("'".join(pieces))
    out = [f"``{piece}``" if place % 2 else plain(piece) for place, piece in enumerate(pieces)]
    for place in range(1, len(out) - 1, 2):  # inline markup must stand apart from letters
        if out[place + 1][:1].isalnum():
            out[place] += "\\ "
        if out[place - 1][-1:].isalnum():
            out[place] = "\\ " + out[place]
    return indent + bullet + "".join(out)


def plain(text: str) -> str:
    return re.sub(r"([\\*|])|_(?=\W|$)", lambda found: "\\" + found[0], text)
