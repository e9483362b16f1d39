"""Files of the hub as checkpoints: headers and byte ranges are fetched, joined and kept, not whole files.

hub_checkpoint    open a model of the hub
HubFolder         the files of one commit: those in the client's own cache are read there, others in ranges
RemoteFile        a file whose fetched ranges lie in a folder of the cache, and are never fetched again
RangePrefetcher   fetches the ranges of planned reads ahead of the reader
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from attngeo.errors import SourceError
from attngeo.io.files import cache_file, remove_unfinished
from attngeo.io.progress import byte_text
from attngeo.io.threads import result_of
from attngeo.weights.sources.byte_file import ByteFile, LocalFile, Span, StoredTensor
from attngeo.weights.sources.checkpoint import Checkpoint
from attngeo.weights.sources.folder import Folder, open_folder, weights_of_file
from attngeo.weights.sources.hub import HubModel, HubRef

WASTE = 0.03  # bytes in gaps that may be fetched to save a request, as a share of the bytes asked for
LARGEST = 32 << 20  # bytes of a joined range, so that the first layer arrives soon
CONNECTIONS = 4  # for ranges
HEADERS = 8  # files whose headers are read at the same time: a header costs two small requests
ABANDONED = 86_400  # seconds after which an incomplete range belongs to no living process, however slow the hub is

Interval = tuple[int, int]
# Bytes [start, stop) in pieces, complete or SourceError; also SourceError soon after the event is set.
Fetch = Callable[[int, int, threading.Event], Iterator[bytes]]
log = logging.getLogger("attngeo")


def hub_checkpoint(ref: HubRef | HubModel, config: Mapping[str, Any] | None) -> Checkpoint:
    """Open `org/name[/path][@revision]`, or a model of the hub whose commit is known already.

    config: used instead of the config.json of the model
    """
    model = ref if isinstance(ref, HubModel) else HubModel(ref)
    ref = model.ref
    if ref.path in model.files:
        parent, _, name = ref.path.rpartition("/")
        folder = HubFolder(model, parent and f"{parent}/")
        return open_folder(folder, config, weights_of_file(name, folder.names, str(ref)))
    folder = HubFolder(model, ref.path and f"{ref.path}/")
    if ref.path and not folder.names:
        raise SourceError(f"{ref}: model {ref.repo!r} has no file or folder {ref.path!r}")
    return open_folder(folder, config)


class HubFolder(Folder):
    """The files of one commit, or of one folder in it.

    prefix: of the folder, with a `/` at its end; empty for the whole repository
    """

    def __init__(self, model: HubModel, prefix: str) -> None:
        self.ref, self._model, self._prefix = str(model.ref), model, prefix
        self.names = [name.removeprefix(prefix) for name in model.files if name.startswith(prefix)]
        self._opened: list[RemoteFile] = []
        self._ranges = model.cache
        try:
            self._ranges.mkdir(parents=True, exist_ok=True)
            writable = os.access(self._ranges, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            self._ranges = Path(tempfile.mkdtemp(prefix="attngeo-"))  # kept as long as this object
            weakref.finalize(self, shutil.rmtree, self._ranges, ignore_errors=True)

    def label(self, name: str) -> str:
        return f"{self._model.ref.repo}/{self._prefix}{name}"

    def open(self, name: str) -> ByteFile:
        model, file = self._model, self._prefix + name
        if (path := model.cached(file)) is not None:
            return LocalFile(path, self.label(name))
        fetch = partial(model.pieces, file)
        self._opened.append(RemoteFile(self.label(name), model.files[file], self._ranges / file, fetch))
        return self._opened[-1]

    def path(self, name: str) -> Path:
        file = self._prefix + name
        return self._model.cached(file) or self._model.download(file, quiet=name.endswith(".json"))

    def inside(self, name: str) -> Folder:
        return HubFolder(self._model, f"{self._prefix}{name}/")

    def map(
        self, read: Callable[[str], dict[str, StoredTensor]], names: Sequence[str]
    ) -> list[dict[str, StoredTensor]]:
        with ThreadPoolExecutor(HEADERS) as pool:
            try:
                return [result_of(future) for future in [pool.submit(read, name) for name in names]]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for file in self._opened:  # the pool waits for what is being fetched
                    file.close()
                raise

    def announce_downloads(self, names: Sequence[str]) -> None:
        missing = [self._prefix + name for name in names if self._model.cached(self._prefix + name) is None]
        if missing:
            size = byte_text(sum(self._model.files[name] for name in missing))
            log.info("%s has no safetensors: downloading all of %s, %s", self.ref, ", ".join(missing), size)


class RemoteFile(ByteFile):
    """A remote file whose fetched ranges are kept in a folder, as files named by their positions."""

    remote = True

    def __init__(self, name: str, size: int, folder: Path, fetch: Fetch) -> None:
        self.name, self.size = name, size
        self._folder, self._fetch = folder, fetch
        self._closed = threading.Event()
        self._held: list[Interval] = []
        if folder.is_dir():
            remove_unfinished(folder, ABANDONED)
            names = (re.fullmatch(r"(\d+)-(\d+)", entry.name) for entry in folder.iterdir())
            self._held = [(int(name[1]), int(name[2])) for name in names if name]

    def holding(self, start: int, stop: int) -> Interval | None:
        """Return a fetched range that covers [start, stop), or None."""
        return next((held for held in self._held if held[0] <= start and stop <= held[1]), None)

    def fetch(self, start: int, stop: int) -> Interval:
        """Return a range in the folder that covers [start, stop), fetched unless it is there already."""
        if (held := self.holding(start, stop)) is not None:
            return held
        try:
            with cache_file(self._folder / f"{start}-{stop}") as file:
                for piece in self._fetch(start, stop, self._closed):
                    file.write(piece)
                    self._check_open()  # otherwise the rest is not needed
        except OSError as error:
            raise SourceError(f"{self.name}: the cache cannot be written ({error.strerror})") from error
        self._held.append((start, stop))
        return start, stop

    def read_into(self, view: memoryview, start: int) -> None:
        self._check_open()
        first, last = self.fetch(start, start + len(view))
        with closing(LocalFile(self._folder / f"{first}-{last}", self.name)) as local:
            local.read_into(view, start - first)

    def close(self) -> None:
        self._closed.set()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise SourceError(f"{self.name}: was read after it was closed")


class RangePrefetcher:
    """Fetches planned ranges in order, a few at a time; one that was not planned is fetched when it is needed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="attngeo-hub")
        self._planned: list[tuple[RemoteFile, int, int, Future[Interval]]] = []

    def plan(self, tensors: Sequence[Sequence[Span]]) -> None:
        """Plan the spans of each tensor, in the order in which they will be needed."""
        needed: dict[RemoteFile, dict[Interval, int]] = {}  # when each interval is needed first
        for position, spans in enumerate(tensors):
            for file, start, stop in _needed(spans):
                needed.setdefault(file, {}).setdefault((start, stop), position)
        ranges = []
        for file, intervals in needed.items():
            for start, stop in join(list(intervals)):
                first = min(position for (at, _), position in intervals.items() if start <= at < stop)
                ranges.append((first, file, start, stop))
        for _, file, start, stop in sorted(ranges, key=lambda item: item[0]):
            self._planned.append((file, start, stop, self._pool.submit(file.fetch, start, stop)))

    def wait_for(self, spans: Sequence[Span]) -> None:
        """Return when the spans of one tensor are in the cache."""
        for file, start, stop in _needed(spans):
            for other, first, last, future in self._planned:
                if other is file and first <= start and stop <= last:
                    future.result()
                    break
            else:
                file.fetch(start, stop)

    def close(self) -> None:
        """Drop the ranges that were not needed."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _needed(spans: Sequence[Span]) -> Iterator[tuple[RemoteFile, int, int]]:
    """Yield what is to be fetched for one tensor: nothing of local files, nor what the cache holds."""
    files: dict[RemoteFile, list[Interval]] = {}
    for file, start, stop in spans:
        if isinstance(file, RemoteFile) and start < stop:
            files.setdefault(file, []).append((start, stop))
    for file, intervals in files.items():
        for start, stop in envelope(intervals):
            if file.holding(start, stop) is None:
                yield file, start, stop


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
            if start < last or (gaps + gap <= waste * (useful + new) and stop - first <= largest):
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
