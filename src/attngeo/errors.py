"""The errors a user can cause, each one line that says what was expected and where."""

from __future__ import annotations


class AttngeoError(Exception):
    """Base of everything attngeo raises on purpose; the message is one complete line."""


class SourceError(AttngeoError):
    """A checkpoint that cannot be found, opened or trusted."""


class LayoutError(AttngeoError):
    """Tensors whose queries and keys cannot be placed."""


class UnprovenError(LayoutError):
    """A layout that could be placed but was never checked against a live model of its type."""


class InputError(AttngeoError, ValueError):
    """A tensor, a tree, a text or an image that cannot be organised."""


def first_line(error: BaseException) -> str:
    """What an error of someone else's says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def reason(error: BaseException) -> str:
    """The system's own words where they are known: libraries hide a full disk behind an error about positions."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__context__
    return first_line(error)
