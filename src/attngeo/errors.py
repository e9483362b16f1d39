"""The exceptions that attngeo raises on purpose. Each message is one line that says what was found and expected."""

from __future__ import annotations

import errno
from collections.abc import Iterator

LONGEST = 300  # characters of a message


class AttngeoError(Exception):
    """Base class of all errors that attngeo raises on purpose; the message is one printable line.

    >>> str(AttngeoError("weights.bin:\\n\\x00 is not a tensor name"))
    'weights.bin: \\\\x00 is not a tensor name'
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class SourceError(AttngeoError):
    """A checkpoint, or another file that a program wrote, cannot be found, opened or trusted."""


class LayoutError(AttngeoError):
    """The tensors of a checkpoint do not show where its queries and keys are stored."""


class UnprovenError(LayoutError):
    """The layout of a checkpoint was inferred, but never checked against a live model of its type."""


class InputError(AttngeoError, ValueError):
    """An argument, a setting or a saved result cannot be used: an array, a tree, a text, an image, a config."""


def one_line(text: object) -> str:
    """Return `text` as one line of at most `LONGEST` printable characters.

    Line breaks become spaces, and other characters that a terminal would not print are escaped. A damaged file can hold
    names of any length: a line that is too long loses its middle, so that it keeps the advice at its end.

    >>> one_line("two\\n  lines"), len(one_line("no tensor " + "x" * 1000)), one_line("x" * 1000 + ", expected y")[-14:]
    ('two lines', 300, 'xx, expected y')
    """
    line = " ".join(part.strip() for part in str(text).splitlines() if part.strip())
    if not line.isprintable():
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[: half - 1]}…{line[-half:]}"


def first_line(error: BaseException) -> str:
    """Return the first line of the message of any exception, or its class name if it has no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def reason(error: BaseException) -> str:
    """Return the operating system's own message if an OSError led to `error`, else the first line of `error`.

    Libraries hide a full disk behind an error about file positions; the OSError is then in the chain of contexts.
    """
    system = next((e for e in _chain(error) if isinstance(e, OSError) and e.strerror), None)
    return first_line(error) if system is None else str(system.strerror)


def disk_is_full(error: BaseException) -> bool:
    """Return whether a full disk, or a quota that is used up, led to `error`."""
    return any(isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT) for e in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
