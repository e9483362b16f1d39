"""A lock on a folder, which the operating system releases however the process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attngeo.errors import AttngeoError


@contextmanager
def folder_lock(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of `folder` inside the context. Platforms without file locks get no lock.

    wait: if another process holds the lock, wait for it; by default this is an error

    >>> with folder_lock(Path(".")):
    ...     print("no other process is at work in this folder")
    no other process is at work in this folder
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise AttngeoError(f"{folder}: another process is using this folder") from None
        yield
    finally:
        os.close(handle)
