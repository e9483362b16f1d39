"""Progress of long work: a bar on a terminal or in a notebook, lines in a log, and amounts in words.

ProgressBar           shows how many parts are done; can be passed wherever a callback is expected
Progress              the type of such callbacks
accepts_progress_bar  lets a function that takes a callback `progress` also take `progress=True` for a bar
is_main_process       whether this process is the one of many that prints
messages_to           warnings and log messages of attngeo as single lines
byte_text, time_left  amounts in words
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from html import escape
from typing import Any, ParamSpec, TypeVar

from attngeo.errors import one_line

Progress = Callable[[int, int | None], None]  # called with (parts done, parts in total or None)
State = tuple[int, int | None, str]  # parts done, parts in total, what else there is to say
P = ParamSpec("P")
R = TypeVar("R")

PATIENCE = 2.0  # seconds before a bar appears
INTERVAL = 60.0  # seconds between the lines of a log
REDRAW = 0.1  # seconds between two updates in a notebook: each is a message from the kernel to the browser


def is_main_process() -> bool:
    """Return whether this is the only process, or the one of many that prints (RANK unset or 0)."""
    return os.environ.get("RANK", "") in ("", "0")


class ProgressBar:
    """A progress bar on stderr or below the cell of a notebook, for work of more than two seconds; lines in a log.

    >>> with ProgressBar("layers") as bar:
    ...     for done in range(1, 4):
    ...         bar.step(done, 3)
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._state: State = (0, None, "")
        self._bar: _TerminalBar | _NotebookBar | None = None  # once it is drawn
        self._closed = False
        self._began = time.monotonic()
        self._next_line: float | None = None  # time of the next line in a log
        self._lock = threading.Lock()
        # A timer, not a check in step(): the first step may itself be the slow one.
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True

    def __enter__(self) -> ProgressBar:
        if is_main_process() and (_in_notebook() or sys.stderr.isatty()):
            self._timer.start()
        elif is_main_process():
            self._next_line = time.monotonic() + INTERVAL
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.close(self._state, completed=error is None)
                self._bar = None

    def step(self, done: int, total: int | None, detail: str = "") -> None:
        """Show that `done` parts are finished, out of `total` where that is known.

        detail: what else there is to say, such as "2 failed"; lines of a log then end with the time that is left
        """
        with self._lock:
            self._state = done, total, detail
            if self._bar is not None:
                self._bar.update(self._state)
            elif self._next_line is not None and time.monotonic() >= self._next_line:
                self._next_line = time.monotonic() + INTERVAL
                left = f", {time_left(time.monotonic() - self._began, done, total)}" if detail and total else ""
                print(f"attngeo: {self._label}: {_parts_done(done, total, detail)}{left}", file=sys.stderr, flush=True)

    __call__ = step  # so that a bar can be passed wherever a callback is expected

    def say(self, line: str) -> None:
        """Print a line on stderr, above the bar if there is one on the terminal."""
        with self._lock:
            if isinstance(self._bar, _TerminalBar):
                self._bar.say(line)
            else:
                print(line, file=sys.stderr, flush=True)

    def _show(self) -> None:
        """Draw the bar; called by the timer, in a thread of its own."""
        bar = _NotebookBar(self._label, self._began) if _in_notebook() else _TerminalBar(self._label)
        with self._lock:
            if self._closed:  # the work ended while rich was being imported
                return
            bar.update(self._state)
            self._bar = bar


class _TerminalBar:
    """A bar, drawn by rich, that vanishes when the work is done, so that only its results are left on the terminal."""

    def __init__(self, label: str) -> None:
        from rich.console import Console
        from rich.markup import escape as escaped
        from rich.progress import Progress, TextColumn

        columns = (*Progress.get_default_columns(), TextColumn("{task.fields[counts]}", markup=False))
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(escaped(label), total=None, counts="")

    def update(self, state: State) -> None:
        """Draw the bar, with counts beside it where the percentage does not say enough."""
        done, total, detail = state
        counts = _parts_done(done, total, detail) if detail else ""
        self._progress.update(self._task, completed=done, total=total, counts=counts)
        self._progress.start()

    def close(self, state: State, completed: bool) -> None:
        """Remove the bar."""
        self._progress.stop()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


class _NotebookBar:
    """A bar below a cell, with its counts and the time that is left. It stays, full if the work was completed."""

    def __init__(self, label: str, began: float) -> None:
        self._label, self._began = label, began  # of the clock time.monotonic
        self._drawn = -REDRAW  # when
        self._handle: Any = None  # of what the cell displays

    def update(self, state: State) -> None:
        """Draw the bar anew, unless that was done a moment ago."""
        if time.monotonic() >= self._drawn + REDRAW:
            self._draw(*state)

    def close(self, state: State, completed: bool) -> None:
        """Draw the bar for the last time."""
        done, total, detail = state
        self._draw(total if completed and total is not None else done, total, detail)

    def _draw(self, done: int, total: int | None, detail: str) -> None:
        text = f"{self._label}: {_parts_done(done, total, detail)}"
        if total is not None and done < total:
            text += f", {time_left(time.monotonic() - self._began, done, total)}"
        value = "" if total is None else f' value="{done}" max="{total}"'  # a bar without a value moves to and fro
        data = {"text/plain": text, "text/html": f"<progress{value}></progress> {escape(text)}"}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)
        self._drawn = time.monotonic()


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which has imported IPython already."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and getattr(get_ipython(), "kernel", None) is not None


def accepts_progress_bar(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, which takes a callback `progress`, so that it also takes `progress=True` for a bar."""

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        named: dict[str, Any] = options
        if not isinstance(named.get("progress"), bool) or not named.pop("progress"):
            return function(*arguments, **options)
        with ProgressBar(function.__name__) as bar:
            named["progress"] = bar
            return function(*arguments, **options)

    return call


@contextmanager
def messages_to(say: Callable[[str], None]) -> Iterator[None]:
    """Pass each warning ("warning: …") and each log message of attngeo to `say` as one line, inside the context."""
    handler = logging.Handler()
    handler.emit = lambda record: say(one_line(record.getMessage()))  # type: ignore[method-assign]
    log = logging.getLogger("attngeo")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.simplefilter("ignore", ResourceWarning)  # an interrupt may leave a file open for a moment
            warnings.showwarning = lambda message, *_, **__: say(f"warning: {one_line(message)}")
            yield
    finally:
        log.removeHandler(handler)


def _parts_done(done: int, total: int | None, detail: str) -> str:
    """Return how many parts are done, out of how many where that is known, and what else there is to say."""
    counts = str(done) if total is None else f"{done} of {total}"
    return f"{counts}, {detail}" if detail else counts


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


def byte_text(count: float) -> str:
    """Return a number of bytes for people.

    >>> byte_text(999), byte_text(3_400_000), byte_text(2.5e12)
    ('999 bytes', '3.4 MB', '2500.0 GB')
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    size, unit = next(((size, unit) for size, unit in ((1e3, "kB"), (1e6, "MB")) if count < 1e3 * size), (1e9, "GB"))
    return f"{count / size:.1f} {unit}"
