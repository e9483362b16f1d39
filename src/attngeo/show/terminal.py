"""What a terminal can show: its width, and whether scores get bars and colours."""

from __future__ import annotations

from dataclasses import dataclass

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


def bar(value: float | None, full: float = 1.0) -> str:
    """Return a bar whose length is |value|/full of `BAR` characters, to an eighth of a character.

    >>> [bar(0.5), bar(-1), bar(0.02), bar(None)]
    ['███   ', '██████', '▏     ', '      ']
    """
    eighths = round(min(abs(value or 0) / full, 1) * BAR * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(BAR)


def colour(value: float | None, z: float | None) -> str:
    """Return the colour of a score: one above 0, another below, faint within two standard deviations of chance."""
    if value is None:
        return ""
    if z is not None and abs(z) < 2:
        return FAINT
    return ABOVE if value > 0 else BELOW
