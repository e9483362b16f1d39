"""The budget of requests to the hub that all workers of a call share.

    HubLimits      how many requests may be sent in which time
    FileLedger     the requests of all processes of this machine, in files of the cache
    keeping_budget a context in which requests about one model wait for their turn

On Ray one actor keeps the ledger for all nodes (`executors/ray_ledger.py`).

In any span of `seconds` at most as many requests are sent as the limits say: each process takes the next free place,
and sleeps until then. The files outlive a call, so that a call that is killed and repeated keeps the budget too.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from attngeo.atlas.reference import Reference
from attngeo.errors import InputError
from attngeo.io.files import cache_dir, folder_lock
from attngeo.weights.sources.hub.retry import LONGEST_WAIT
from attngeo.weights.sources.hub.throttle import Kind, Ledger, throttled

_TIME = struct.Struct("<d")
KEPT = 1 << 20  # bytes of a file before old requests are removed from it


@dataclass(frozen=True)
class HubLimits:
    """How many requests a call may send to the hub: by default 80% of what the hub allows anonymous users.

    >>> HubLimits()
    HubLimits(api=400, files=2400, seconds=300.0)
    """

    api: int = 400  # listings: one per model
    files: int = 2400  # contents of files, where the hub itself is asked; mostly it redirects to its storage
    seconds: float = 300.0

    def __post_init__(self) -> None:
        for name in ("api", "files"):
            if getattr(self, name) < 1:
                raise InputError(f"hub limits: {name} is {getattr(self, name)}, expected at least 1 request")
        if not self.seconds > 0:
            raise InputError(f"hub limits: seconds is {self.seconds}, expected more than 0")

    def of(self, kind: Kind) -> int | None:
        """Return the limit of one kind of requests; None: none, as for hosts that only store files."""
        return {"api": self.api, "file": self.files, "storage": None}[kind]


def ledger_folder() -> Path:
    """Return the folder for the requests to the hub in use; a temporary one if the cache cannot be written."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    for root in (cache_dir() / "hub", Path(tempfile.gettempdir()) / f"attngeo-{os.environ.get('USER', 'hub')}"):
        folder = root / "requests" / quote(endpoint, safe="")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="attngeo-"))


@dataclass(frozen=True)
class FileLedger:
    """The ledger of this machine: per kind, a file with the end of a pause and then the time of each request.

    >>> ledger = FileLedger(HubLimits(api=2, seconds=60), Path("."))
    >>> [round(ledger.reserve("api")) for _ in range(5)]
    [0, 0, 60, 60, 120]
    """

    limits: HubLimits
    folder: Path = field(default_factory=ledger_folder)

    def reserve(self, kind: Kind) -> float:
        limit = self.limits.of(kind)
        if limit is None:
            return self.paused(kind)
        with folder_lock(self.folder, wait=True), _Times(self.folder / kind) as times:
            now = time.time()
            if len(times) and times[-1] > now + _furthest(self.limits.seconds):
                times.clear()  # the clock was set back
            earliest = max(now, self._pause_end(times, now))
            if len(times):
                earliest = max(earliest, times[-1])  # in the order of reservations
            if len(times) >= limit:
                earliest = max(earliest, times[-limit] + self.limits.seconds)
            times.append(earliest, keep=limit)
        return earliest - now

    def pause(self, kind: Kind, seconds: float) -> None:
        with folder_lock(self.folder, wait=True), _Times(self.folder / kind) as times:
            now = time.time()
            times.until = max(self._pause_end(times, now), now + min(seconds, LONGEST_WAIT))

    def paused(self, kind: Kind) -> float:
        with folder_lock(self.folder, wait=True), _Times(self.folder / kind) as times:
            now = time.time()
            return max(0.0, self._pause_end(times, now) - now)

    def _pause_end(self, times: _Times, now: float) -> float:
        return times.until if times.until <= now + LONGEST_WAIT else now  # later: the clock was set back


def ledger_for(references: Iterable[Reference], limits: HubLimits | None) -> FileLedger | None:
    """Return the ledger of a call; None if no model is on the hub."""
    on_hub = any(reference.revision is not None for reference in references)
    return FileLedger(limits or HubLimits()) if on_hub else None


def keeping_budget(ledger: Ledger | None, reference: Reference) -> AbstractContextManager[None]:
    """Return a context in which each request to the hub waits for its place; files on this machine need none."""
    return nullcontext() if ledger is None or reference.revision is None else throttled(ledger)


def _furthest(seconds: float) -> float:
    """Return the seconds by which a reservation may lie ahead: far more than any number of waiting threads needs."""
    return 24 * 3600 + 100 * seconds


class _Times:
    """A file of times, opened under a lock: first the end of a pause, then requests in order."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "r+b" if path.exists() else "w+b", buffering=0)  # noqa: SIM115
        self._count = max(0, os.fstat(self._file.fileno()).st_size // _TIME.size - 1)

    def __enter__(self) -> _Times:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> float:
        return self._read(self._count + index)

    @property
    def until(self) -> float:
        return self._read(-1)

    @until.setter
    def until(self, end: float) -> None:
        self._write(-1, end)

    def append(self, when: float, keep: int) -> None:
        """Add a request; in a long file only the last `keep` stay."""
        if self._count * _TIME.size > KEPT and self._count > 2 * keep:
            last = [self[i] for i in range(-keep, 0)]
            self.clear()
            for time_ in last:
                self.append(time_, keep)
        self._write(self._count, when)
        self._count += 1

    def clear(self) -> None:
        self._file.truncate(_TIME.size)
        self._count = 0

    def _read(self, place: int) -> float:
        self._file.seek((place + 1) * _TIME.size)
        data = self._file.read(_TIME.size)
        return float(_TIME.unpack(data)[0]) if len(data) == _TIME.size else 0.0

    def _write(self, place: int, value: float) -> None:
        if place >= 0 and self._count == 0 and os.fstat(self._file.fileno()).st_size < _TIME.size:
            self._write(-1, 0.0)
        self._file.seek((place + 1) * _TIME.size)
        self._file.write(_TIME.pack(value))
