"""One process at a time in a folder; the system lets go of it however the process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attngeo.errors import AttngeoError


@contextmanager
def alone(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold `folder` while inside; where another process does, wait for it or raise.

    >>> with alone(Path("runs/a")):
    ...     train()
    """
    try:
        import fcntl
    except ImportError:  # not on this system: no protection, no harm
        yield
        return
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise AttngeoError(f"{folder}: another process is at work in this folder") from None
        yield
    finally:
        os.close(handle)
