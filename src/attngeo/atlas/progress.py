"""How far a call of an atlas is: counted, drawn as a bar, and written to the folder for `status` in another terminal.

CallProgress   counts outcomes and shows them
RunningCall    what another process can see of it
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from attngeo.atlas.task import Outcome
from attngeo.errors import AttngeoError
from attngeo.io.archive import as_plain, from_plain, load_json, save_json
from attngeo.io.progress import ProgressBar, byte_text, time_left

RUNNING = "running"  # folder in an atlas with one small file per call that is at work
KIND = "running call"  # of these files
EVERY = 1.0  # seconds between two writes of it
FORGOTTEN = 86_400.0  # seconds after which a call on another machine counts as ended


@dataclass(frozen=True)
class RunningCall:
    """A call of `add` or `organize` that is at work, as it last described itself.

    >>> print(RunningCall(120, 500, 2, 3_400_000, 60.0, 60.0, 4711, "node1"))
    running on node1 (process 4711): 120 of 500 done, 2 failed, 3.4 MB read, 3 min left
    """

    done: int  # tasks
    total: int
    failed: int
    read: int  # bytes of weights
    seconds: float  # since it began
    time: float  # when this was written, in seconds of time.time
    process: int
    host: str

    def __str__(self) -> str:
        return (
            f"running on {self.host} (process {self.process}): {self.done} of {self.total} done, "
            f"{_detail(self.failed, self.read)}, {time_left(self.seconds, self.done, self.total)}"
        )

    @property
    def alive(self) -> bool:
        """Return whether the process still runs; that of another machine is believed for a day."""
        if self.host != socket.gethostname():
            return time.time() - self.time < FORGOTTEN
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True  # it belongs to another user
        return True


class CallProgress:
    """Counts the outcomes of one call, shows them, and keeps its file in the folder of the atlas up to date.

    progress: a bar, a function that is called with (done, total), or None
    say:      called with one line about each reference that fails; by default the bar prints it
    """

    def __init__(
        self,
        root: Path,
        total: int,
        progress: Callable[[int, int], None] | None,
        say: Callable[[str], None] | None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._total, self._read = total, 0
        self._progress, self._say = progress, say
        self._said: set[str] = set()
        self._began = time.monotonic()
        self._written = -EVERY
        self._path = root / RUNNING / f"{socket.gethostname()}-{os.getpid()}-{id(self)}.json"

    def __enter__(self) -> CallProgress:
        running_calls(self._path.parents[1])
        self._write()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._path.unlink()

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        self.counts[outcome.state] += 1
        self._read += outcome.read
        line = outcome.line
        if outcome.state == "failed" and self._say is not None and line not in self._said:
            self._said.add(line)  # a network that cannot be loaded fails on each text
            self._say(line)
        done, failed = self.counts.total(), self.counts["failed"]
        if isinstance(self._progress, ProgressBar):
            self._progress.step(done, self._total, _detail(failed, self._read))
        elif self._progress is not None:
            self._progress(done, self._total)
        if time.monotonic() - self._written >= EVERY:
            self._write()

    def _write(self) -> None:
        """Describe this call for other processes; a folder that cannot be written is not worth an error here."""
        self._written = time.monotonic()
        numbers = (self.counts.total(), self._total, self.counts["failed"], self._read, self._written - self._began)
        call = RunningCall(*numbers, time.time(), os.getpid(), socket.gethostname())
        with suppress(OSError, AttngeoError):
            self._path.parent.mkdir(exist_ok=True)
            save_json(self._path, KIND, as_plain(call))


def running_calls(root: Path) -> list[RunningCall]:
    """Return the calls that are at work in an atlas, and remove the files of calls that were killed."""
    calls = []
    for path in sorted((root / RUNNING).glob("*.json")):
        try:
            call = from_plain(RunningCall, load_json(path, KIND))
        except Exception:  # removed, or damaged
            call = None
        if call is not None and call.alive:
            calls.append(call)
        else:
            with suppress(OSError):  # removed by another process, or of another user
                path.unlink()
    return calls


def _detail(failed: int, read: int) -> str:
    return f"{failed} failed" + (f", {byte_text(read)} read" if read else "")
