"""What a terminal can show: its width, and whether scores get bars and colours."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap

WIDTH = 100  # characters that a table has at most
BAR = 6  # characters of a full bar

# Escape sequences: cyan, yellow, faint, bold. Cyan and yellow are told apart with every kind of colour vision.
ABOVE, BELOW, FAINT, STRONG, _END = "\x1b[36m", "\x1b[33m", "\x1b[2m", "\x1b[1m", "\x1b[0m"

_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class Terminal:
    """How text is to be printed; by default plain, as for a file or a pipe."""

    width: int = WIDTH
    bars: bool = False
    colours: bool = False

    def paint(self, text: str, code: str) -> str:
        """Return text in the colour of an escape sequence, or as it is where there are no colours."""
        return f"{code}{text}{_END}" if self.colours and code and text.strip() else text


PLAIN = Terminal()


def folded(text: str, width: int) -> str:
    """Return text with the sentences that are wider than `width` broken at words; rows of tables stay whole.

    A row has two spaces between its cells. Coloured lines were fitted by whoever coloured them.

    >>> print(folded("z: standard deviations above the mean\\nlayer  symmetry  directionality  dominance", 30))
    z: standard deviations above
    the mean
    layer  symmetry  directionality  dominance
    """
    lines = []
    for line in text.split("\n"):
        words = line.lstrip(" ")
        if len(line) <= width or "  " in words or "\x1b" in line:
            lines.append(line)
        else:
            indent = " " * (len(line) - len(words))
            lines += wrap(
                words,
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def bar(value: float | None) -> str:
    """Return a bar whose length is |value| of `BAR` characters, to an eighth of a character.

    >>> [bar(0.5), bar(-1), bar(0.02), bar(None)]
    ['███   ', '██████', '▏     ', '      ']
    """
    eighths = round(min(abs(value or 0), 1) * BAR * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(BAR)


def colour(value: float | None, z: float | None) -> str:
    """Return the colour of a score: one above 0, another below, faint within two standard deviations of chance."""
    if value is None:
        return ""
    if z is not None and abs(z) < 2:
        return FAINT
    return ABOVE if value > 0 else BELOW
