"""A progress bar where someone is watching and the work takes longer than two seconds; a line a minute elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE = 2.0  # seconds before a wait deserves a bar
INTERVAL = 60.0  # seconds between lines of a log


def speaks() -> bool:
    """Whether this process is alone, or the one of many that speaks for all."""
    return os.environ.get("RANK", "") in ("", "0")


class Bar:
    """`with Bar("name") as bar: work(progress=bar.step)`, where work calls step(done, total) now and then."""

    def __init__(self, label: str) -> None:
        self._label, self._done = label, 0
        self._total: int | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._closed = False
        self._due: float | None = None  # when the next line of a log is to be written
        self._lock = threading.Lock()
        # A timer, not a check in step(): the first step itself may be the slow one.
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Bar:
        if speaks() and sys.stderr.isatty():
            self._timer.start()
        elif speaks():
            self._due = time.monotonic() + INTERVAL
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()

    def step(self, done: int, total: int | None) -> None:
        """So many parts done, of so many if that is known."""
        with self._lock:
            self._done, self._total = done, total
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, completed=done, total=total)
            elif self._due is not None and time.monotonic() >= self._due:
                self._due = time.monotonic() + INTERVAL
                of = f" of {total}" if total is not None else ""
                print(f"attngeo: {self._label}: {done}{of}", file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """A line on stderr, above the bar where there is one."""
        with self._lock:
            if self._progress is not None:
                self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                print(line, file=sys.stderr, flush=True)

    def _show(self) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress

        with self._lock:
            if self._closed:  # finished while rich was being imported
                return
            # Transient: once done, the terminal holds nothing but results.
            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(escape(self._label), completed=self._done, total=self._total)
            self._progress.start()
