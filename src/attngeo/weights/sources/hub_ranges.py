"""Byte ranges of remote files: join neighbouring ranges, keep them in the cache, and fetch them ahead of the reader."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from attngeo.errors import SourceError
from attngeo.io.files import cache_file, remove_unfinished
from attngeo.weights.sources.byte_file import ByteFile, LocalFile, Span

WASTE = 0.03  # bytes in gaps that may be fetched to save a request, as a share of the bytes asked for
LARGEST = 32 << 20  # bytes of a joined range, so that the first layer arrives soon
AHEAD = 6  # ranges fetched before they are needed
CONNECTIONS = 4
ABANDONED = 86_400  # seconds after which an incomplete range belongs to no living process, however slow the hub is

Interval = tuple[int, int]
# Bytes [start, stop) in pieces, complete or SourceError; also SourceError soon after the event is set.
Fetch = Callable[[int, int, threading.Event], Iterator[bytes]]


def join(wanted: Sequence[Interval], waste: float = WASTE, largest: int = LARGEST) -> list[Interval]:
    """Return the fewest intervals, in order of position, that cover the wanted ones.

    waste:   the largest share of bytes in gaps between wanted intervals
    largest: the most bytes of a joined interval

    >>> join([(0, 100), (100, 200), (203, 400), (900, 1000)])
    [(0, 400), (900, 1000)]
    """
    joined: list[Interval] = []
    useful = gaps = 0  # of the interval being built
    for start, stop in sorted(set(wanted)):
        if joined:
            first, last = joined[-1]
            gap, new = max(start - last, 0), max(stop - max(start, last), 0)
            overlaps = start < last
            if overlaps or (gaps + gap <= waste * (useful + new) and stop - first <= largest):
                joined[-1] = (first, max(stop, last))
                useful, gaps = useful + new, gaps + gap
                continue
        joined.append((start, stop))
        useful, gaps = stop - start, 0
    return joined


def envelope(rows: Sequence[Interval]) -> list[Interval]:
    """Return at most two intervals that cover one tensor's; many small ones, as of interleaved heads, become one."""
    joined = join(rows, largest=1 << 62)
    return joined if len(joined) <= 2 else [(joined[0][0], joined[-1][1])]


class RemoteFile(ByteFile):
    """A remote file whose fetched ranges are kept in a folder, as files named by their positions."""

    remote = True

    def __init__(self, name: str, size: int, folder: Path, fetch: Fetch) -> None:
        self.name, self.size = name, size
        self._folder, self._fetch = folder, fetch
        self._held: list[Interval] = []
        self._closed = threading.Event()
        if folder.is_dir():
            remove_unfinished(folder, ABANDONED)
            names = [entry for entry in os.listdir(folder) if re.fullmatch(r"\d+-\d+", entry)]
            for start, stop in (map(int, entry.split("-")) for entry in names):
                if (folder / f"{start}-{stop}").stat().st_size == stop - start:
                    self._held.append((start, stop))

    def holding(self, start: int, stop: int) -> Interval | None:
        """Return a fetched range that covers [start, stop), or None."""
        return next((held for held in self._held if held[0] <= start and stop <= held[1]), None)

    def fetch(self, start: int, stop: int) -> None:
        """Fetch [start, stop) into the folder, unless it is there already."""
        self._check_span(start, stop)
        if self.holding(start, stop) is not None:
            return
        try:
            with cache_file(self._folder / f"{start}-{stop}") as file:
                for piece in self._fetch(start, stop, self._closed):
                    file.write(piece)
                    if self._closed.is_set():  # the rest is not needed
                        raise SourceError(f"{self.name}: was read after it was closed")
        except OSError as error:
            raise SourceError(f"{self.name}: cannot be stored in {self._folder} ({error.strerror})") from error
        self._held.append((start, stop))

    @contextmanager
    def span(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        if self._closed.is_set():
            raise SourceError(f"{self.name}: was read after it was closed")
        self.fetch(start, stop)
        held = self.holding(start, stop)
        assert held is not None
        local = LocalFile(self._folder / f"{held[0]}-{held[1]}", self.name)
        try:
            with local.span(start - held[0], stop - held[0]) as (fd, position):
                yield fd, position
        finally:
            local.close()

    def close(self) -> None:
        self._closed.set()


@dataclass(frozen=True)
class _Range:
    file: RemoteFile
    start: int
    stop: int


class RangePrefetcher:
    """Fetches planned ranges in order, a few at a time; a range that is needed now is fetched at once."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="attngeo-hub")
        self._queue: deque[_Range] = deque()
        self._running: dict[_Range, Future[None]] = {}
        self._lock = threading.Lock()

    def plan(self, tensors: Sequence[Sequence[Span]]) -> None:
        """Plan the spans of each tensor, in the order in which they will be needed."""
        missing = [
            (position, file, start, stop)
            for position, spans in enumerate(tensors)
            for file, intervals in _by_file(spans).items()
            for start, stop in envelope(intervals)
            if start < stop and file.holding(start, stop) is None
        ]
        ranges = []
        for file in {file for _, file, _, _ in missing}:
            of_file = [(position, start, stop) for position, owner, start, stop in missing if owner is file]
            for start, stop in join([(a, b) for _, a, b in of_file]):
                first = min(position for position, a, _ in of_file if start <= a < stop)
                ranges.append((first, _Range(file, start, stop)))
        with self._lock:
            self._queue.extend(item for _, item in sorted(ranges, key=lambda pair: pair[0]))
            self._refill()

    def wait_for(self, spans: Sequence[Span]) -> None:
        """Return when the spans of one tensor are in the cache."""
        for file, intervals in _by_file(spans).items():
            for start, stop in envelope(intervals):
                if start == stop:
                    continue
                with self._lock:
                    ready = self._claim(file, start, stop)
                if ready is not None:
                    ready.result()
                file.fetch(start, stop)

    def close(self) -> None:
        """Drop the ranges that were not needed."""
        with self._lock:
            self._queue.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _claim(self, file: RemoteFile, start: int, stop: int) -> Future[None] | None:
        """Return the running fetch that covers [start, stop), after starting it if it was only planned."""

        def covers(item: _Range) -> bool:
            return item.file is file and item.start <= start and stop <= item.stop

        for item in list(self._queue):
            if covers(item):  # read in another order than planned
                self._queue.remove(item)
                self._start(item)
        future = next((self._running.pop(item) for item in list(self._running) if covers(item)), None)
        self._refill()
        return future

    def _refill(self) -> None:
        while self._queue and len(self._running) < AHEAD:
            self._start(self._queue.popleft())

    def _start(self, item: _Range) -> None:
        self._running[item] = self._pool.submit(item.file.fetch, item.start, item.stop)


def _by_file(spans: Sequence[Span]) -> dict[RemoteFile, list[Interval]]:
    """Return the intervals per remote file; spans of local files need no fetching."""
    files: dict[RemoteFile, list[Interval]] = {}
    for file, start, stop in spans:
        if isinstance(file, RemoteFile):
            files.setdefault(file, []).append((start, stop))
    return files
