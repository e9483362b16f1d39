"""Bytes of a file by position, wherever the file is kept."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from attngeo.errors import SourceError


class ByteFile(ABC):
    """A file of known size of which byte spans can be had."""

    name: str  # as the user would recognise it, for error messages
    size: int
    remote = False  # a span may cost a request

    @abstractmethod
    def span(self, start: int, stop: int) -> AbstractContextManager[tuple[int, int]]:
        """Open file descriptor that holds bytes [start, stop), and the position where they begin in it."""

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop) as one object; for headers, not for weights."""
        data = bytearray(stop - start)
        with self.span(start, stop) as (fd, position):
            fill(fd, position, memoryview(data), self.name)
        return bytes(data)

    def close(self) -> None:
        """Release the file."""
        return None


Span = tuple[ByteFile, int, int]  # bytes [start, stop) of a file


class LocalFile(ByteFile):
    """A file on this machine, opened once and read by position (threads do not disturb each other)."""

    def __init__(self, path: str | Path, name: str | None = None) -> None:
        self.name = name or str(path)
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise SourceError(f"{self.name}: cannot be opened ({error.strerror})") from error
        self.size = os.fstat(self._fd).st_size

    @contextmanager
    def span(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        if self._fd < 0:
            raise SourceError(f"{self.name}: read after close")
        if not 0 <= start <= stop <= self.size:
            raise SourceError(f"{self.name}: cut short, bytes {start} to {stop} expected, the file has {self.size}")
        yield self._fd, start

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_fd"):  # not if opening failed
            self.close()


def fill(fd: int, position: int, view: memoryview, name: str) -> None:
    """Read exactly len(view) bytes from `position`; a file that became shorter meanwhile is an error."""
    done = 0
    while done < len(view):
        try:
            count = _pread(fd, view[done:], position + done)
        except OSError as error:
            raise SourceError(f"{name}: cannot be read ({error.strerror})") from error
        if count == 0:
            raise SourceError(f"{name}: cut short, {len(view)} bytes expected at {position}, {done} found")
        done += count


if hasattr(os, "preadv"):

    def _pread(fd: int, view: memoryview, position: int) -> int:
        return os.preadv(fd, [view], position)

else:  # Windows: no positional read, so one reader at a time
    import threading

    _seek_lock = threading.Lock()

    def _pread(fd: int, view: memoryview, position: int) -> int:
        with _seek_lock:
            os.lseek(fd, position, os.SEEK_SET)
            data = os.read(fd, len(view))
        view[: len(data)] = data
        return len(data)
