"""Warnings and log messages of attngeo as single lines, for command lines."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def messages_to(say: Callable[[str], None]) -> Iterator[None]:
    """Pass each warning ("warning: …") and each log message of attngeo to `say` as one line, inside the context."""
    handler = logging.Handler()
    handler.emit = lambda record: say(one_line(record.getMessage()))  # type: ignore[method-assign]
    log = logging.getLogger("attngeo")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.simplefilter("ignore", ResourceWarning)  # an interrupt may leave a file open for a moment
            warnings.showwarning = lambda message, *_, **__: say(f"warning: {one_line(message)}")
            yield
    finally:
        log.removeHandler(handler)


def one_line(message: object) -> str:
    """Return a message with all its white space folded into single spaces.

    >>> one_line("two\\n  lines")
    'two lines'
    """
    return " ".join(str(message).split())
