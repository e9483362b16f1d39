"""Compare what a block prints with what the page shows."""

from __future__ import annotations

import difflib
import re

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:[eE][-+−]?\d+)?")
PROGRESS = re.compile(r"^attngeo: \S+: [\d,]+ of [\d,]+$")
EXACT_DIGITS = 6  # numbers with more digits are compared to a relative error of 1e-6: machines differ in rounding


def difference(shown: str, printed: str, varies: tuple[str, ...] = ()) -> str:
    """Return how two outputs differ, as lines of a diff, or an empty string.

    Numbers are compared to the digits that are shown. On lines that contain a word of `varies` they are not compared.

    >>> difference("took 1.2 s\\n", "took 3 s\\n", varies=("took",))
    ''
    >>> difference("0.12\\n", "0.13\\n")
    '-0.12\\n+0.13'
    """
    expected = [normal(line, varies) for line in tidy(shown)]
    actual = [normal(line, varies) for line in tidy(printed)]
    if len(expected) == len(actual) and all(same(a, b) for a, b in zip(expected, actual, strict=True)):
        return ""
    lines = list(difflib.unified_diff(expected, actual, lineterm="", n=0))[2:]
    return "\n".join(line for line in lines if not line.startswith("@@"))


def tidy(text: str) -> list[str]:
    """Return the lines of an output without progress messages, which appear where a machine is slow."""
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    return [line for line in lines if not PROGRESS.match(line)]


def normal(line: str, varies: tuple[str, ...]) -> str:
    if any(word in line for word in varies):
        return re.sub(r"\s+", " ", NUMBER.sub("#", line))
    return line


def same(a: str, b: str) -> bool:
    if a == b:
        return True
    if NUMBER.sub("#", a) != NUMBER.sub("#", b):
        return False
    pairs = zip(NUMBER.findall(a), NUMBER.findall(b), strict=True)
    return all(x == y or (long(x) and long(y) and close(x, y)) for x, y in pairs)


def long(number: str) -> bool:
    return len(re.sub(r"[eE].*|\D", "", number).lstrip("0")) > EXACT_DIGITS and "." in number


def close(x: str, y: str) -> bool:
    a, b = (float(number.replace(",", "").replace("−", "-")) for number in (x, y))
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b))
