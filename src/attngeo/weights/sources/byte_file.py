"""Read byte spans of a file by position, wherever the file is stored."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from attngeo.errors import SourceError, reason


class ByteFile(ABC):
    """A file of known size whose bytes can be read by position."""

    name: str  # for error messages, as the user would recognise it
    size: int  # bytes
    remote = False  # true if a span can cost a network request

    @abstractmethod
    def span(self, start: int, stop: int) -> AbstractContextManager[tuple[int, int]]:
        """Return a context that yields a file descriptor and the position in it where bytes [start, stop) begin."""

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop); for headers, because weights are better read into an array."""
        with self.span(start, stop) as (fd, position):  # checks the span before memory is allocated for it
            data = bytearray(stop - start)
            fill(fd, position, memoryview(data), self.name)
        return bytes(data)

    def close(self) -> None:
        """Release the file."""
        return None

    def _check_span(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.size:
            raise SourceError(
                f"{self.name}: bytes {start} to {stop} are needed, but the file has {self.size}; it is incomplete"
            )


_bytes_read = 0
_counting = threading.Lock()
Span = tuple[ByteFile, int, int]  # bytes [start, stop) of a file


class LocalFile(ByteFile):
    """A file on this machine, opened once; positional reads let several threads share it."""

    def __init__(self, path: str | Path, name: str | None = None) -> None:
        self.name = name or str(path)
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
            raise SourceError(f"{self.name}: cannot be opened ({reason(error)})") from error
        self.size = os.fstat(self._fd).st_size

    @contextmanager
    def span(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        if self._fd < 0:
            raise SourceError(f"{self.name}: was read after it was closed")
        self._check_span(start, stop)
        yield self._fd, start

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_fd"):  # not if opening failed
            self.close()


def fill(fd: int, position: int, view: memoryview, name: str) -> None:
    """Read exactly len(view) bytes from `position` of `fd` into `view`, or raise SourceError.

    name: of the file, for the message; the file may have become shorter since it was opened
    """
    global _bytes_read
    done = 0
    while done < len(view):
        try:
            count = _pread(fd, view[done:], position + done)
        except OSError as error:
            raise SourceError(f"{name}: cannot be read ({error.strerror})") from error
        if count == 0:
            raise SourceError(f"{name}: ends {done} bytes after byte {position}, expected {len(view)} bytes there")
        done += count
    with _counting:
        _bytes_read += done


def bytes_read() -> int:
    """Return how many bytes this process has read of files so far; those of the hub count once they are cached."""
    return _bytes_read


if hasattr(os, "preadv"):

    def _pread(fd: int, view: memoryview, position: int) -> int:
        return os.preadv(fd, [view], position)

else:  # Windows has no positional read, so that one thread reads at a time
    _seek_lock = threading.Lock()

    def _pread(fd: int, view: memoryview, position: int) -> int:
        with _seek_lock:
            os.lseek(fd, position, os.SEEK_SET)
            data = os.read(fd, len(view))
        view[: len(data)] = data
        return len(data)
