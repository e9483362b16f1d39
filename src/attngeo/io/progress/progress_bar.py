"""Optional progress bars: on a terminal or in a notebook when work takes longer than two seconds, lines in a log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from attngeo.io.progress.amounts import parts_done, time_left
from attngeo.io.progress.notebook_bar import NotebookBar, in_notebook
from attngeo.io.progress.terminal_bar import TerminalBar

Progress = Callable[[int, int | None], None]  # called with (parts done, parts in total or None)
P = ParamSpec("P")
R = TypeVar("R")

PATIENCE = 2.0  # seconds before a bar appears
INTERVAL = 60.0  # seconds between the lines of a log


def is_main_process() -> bool:
    """Return whether this is the only process, or the one of many that prints (RANK unset or 0)."""
    return os.environ.get("RANK", "") in ("", "0")


class ProgressBar:
    """A progress bar on stderr, or below the cell of a notebook.

    >>> with ProgressBar("layers") as bar:
    ...     for done in range(1, 4):
    ...         bar.step(done, 3)
    """

    def __init__(self, label: str) -> None:
        self._label, self._done, self._detail = label, 0, ""
        self._total: int | None = None
        self._bar: TerminalBar | NotebookBar | None = None  # once it is drawn
        self._closed = False
        self._began = time.monotonic()
        self._next_line: float | None = None  # time of the next line in a log
        self._lock = threading.Lock()
        # A timer, not a check in step(): the first step may itself be the slow one.
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True

    def __enter__(self) -> ProgressBar:
        if is_main_process() and (in_notebook() or sys.stderr.isatty()):
            self._timer.start()
        elif is_main_process():
            self._next_line = time.monotonic() + INTERVAL
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.close(completed=error is None)
                self._bar = None

    def step(self, done: int, total: int | None, detail: str = "") -> None:
        """Show that `done` parts are finished, out of `total` where that is known.

        detail: what else there is to say, such as "2 failed"; lines of a log then end with the time that is left
        """
        with self._lock:
            self._done, self._total, self._detail = done, total, detail
            if self._bar is not None:
                self._bar.update(done, total, detail)
            elif self._next_line is not None and time.monotonic() >= self._next_line:
                self._next_line = time.monotonic() + INTERVAL
                left = f", {time_left(time.monotonic() - self._began, done, total)}" if detail and total else ""
                print(f"attngeo: {self._label}: {parts_done(done, total, detail)}{left}", file=sys.stderr, flush=True)

    __call__ = step  # so that a bar can be passed wherever a callback is expected

    def say(self, line: str) -> None:
        """Print a line on stderr, above the bar if there is one on the terminal."""
        with self._lock:
            if self._bar is not None:
                self._bar.say(line)
            else:
                print(line, file=sys.stderr, flush=True)

    def _show(self) -> None:
        """Draw the bar; called by the timer, in a thread of its own."""
        try:
            bar = NotebookBar(self._label, self._began) if in_notebook() else TerminalBar(self._label)
        except ImportError:  # training needs no rich: work goes on without a bar
            return
        with self._lock:
            if self._closed:  # the work ended while rich was being imported
                return
            bar.update(self._done, self._total, self._detail)
            self._bar = bar


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
