"""Optional progress bars: drawn on a terminal when work takes longer than two seconds, one line per minute in a log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import rich.progress

Progress = Callable[[int, int | None], None]  # called with (parts done, parts in total or None)
P = ParamSpec("P")
R = TypeVar("R")

PATIENCE = 2.0  # seconds before a bar appears
INTERVAL = 60.0  # seconds between the lines of a log


def is_main_process() -> bool:
    """Return whether this is the only process, or the one of many that prints (RANK unset or 0)."""
    return os.environ.get("RANK", "") in ("", "0")


class ProgressBar:
    """A progress bar on stderr.

    >>> with ProgressBar("layers") as bar:
    ...     for done in range(1, 4):
    ...         bar.step(done, 3)
    """

    def __init__(self, label: str) -> None:
        self._label, self._done = label, 0
        self._total: int | None = None
        self._progress: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None
        self._closed = False
        self._detail = ""
        self._began = time.monotonic()
        self._next_line: float | None = None  # time of the next line in a log
        self._lock = threading.Lock()
        # A timer, not a check in step(): the first step may itself be the slow one.
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True

    def __enter__(self) -> ProgressBar:
        if is_main_process() and sys.stderr.isatty():
            self._timer.start()
        elif is_main_process():
            self._next_line = time.monotonic() + INTERVAL
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()

    def step(self, done: int, total: int | None, detail: str = "") -> None:
        """Show that `done` parts are finished, out of `total` where that is known.

        detail: what else there is to say, such as "2 failed"; lines of a log then end with the time that is left
        """
        with self._lock:
            self._done, self._total, self._detail = done, total, detail
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, completed=done, total=total, detail=self._counts())
            elif self._next_line is not None and time.monotonic() >= self._next_line:
                self._next_line = time.monotonic() + INTERVAL
                left = f", {time_left(time.monotonic() - self._began, done, total)}" if detail and total else ""
                counts = self._counts() or (str(done) if total is None else f"{done} of {total}")
                print(f"attngeo: {self._label}: {counts}{left}", file=sys.stderr, flush=True)

    def _counts(self) -> str:
        """Return the counts beside a bar; none where the percentage says enough."""
        return f"{self._done} of {self._total}, {self._detail}" if self._detail else ""

    __call__ = step  # so that a bar can be passed wherever a callback is expected

    def say(self, line: str) -> None:
        """Print a line on stderr, above the bar if there is one."""
        with self._lock:
            if self._progress is not None:
                self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                print(line, file=sys.stderr, flush=True)

    def _show(self) -> None:
        """Draw the bar; called by the timer, in a thread of its own."""
        try:
            from rich.console import Console
            from rich.markup import escape
            from rich.progress import Progress as RichProgress
            from rich.progress import TextColumn
        except ImportError:  # training needs no rich: work goes on without a bar
            return
        with self._lock:
            if self._closed:  # the work ended while rich was being imported
                return
            # Transient: when the work is done, only its results are left on the terminal.
            columns = (*RichProgress.get_default_columns(), TextColumn("{task.fields[detail]}", markup=False))
            self._progress = RichProgress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(
                escape(self._label), completed=self._done, total=self._total, detail=self._counts()
            )
            self._progress.start()


def time_left(seconds: float, done: int, total: int) -> str:
    """Return in words how long the rest takes, if it goes on as in the `seconds` so far.

    >>> time_left(60, 100, 250), time_left(1, 0, 5), time_left(7200, 1, 3)
    ('2 min left', 'time left unknown', '4.0 h left')
    """
    if not done:
        return "time left unknown"
    left = seconds / done * (total - done)
    if left < 90:
        return f"{left:.0f} s left"
    return f"{left / 60:.0f} min left" if left < 5400 else f"{left / 3600:.1f} h left"


def accepts_progress_bar(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, which takes a callback `progress`, so that it also takes `progress=True` for a bar."""

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        named: dict[str, Any] = options
        if not isinstance(named.get("progress"), bool):
            return function(*arguments, **options)
        if not named.pop("progress"):
            return function(*arguments, **options)
        with ProgressBar(function.__name__) as bar:
            named["progress"] = bar
            return function(*arguments, **options)

    return call


def byte_text(count: float) -> str:
    """Return a number of bytes for people.

    >>> byte_text(999), byte_text(3_400_000), byte_text(2.5e12)
    ('999 bytes', '3.4 MB', '2500.0 GB')
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    size, unit = next(((size, unit) for size, unit in ((1e3, "kB"), (1e6, "MB")) if count < 1e3 * size), (1e9, "GB"))
    return f"{count / size:.1f} {unit}"
