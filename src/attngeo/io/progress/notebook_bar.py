"""A progress bar below a cell of a notebook, updated in place."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import Any

from attngeo.io.progress.amounts import parts_done, time_left

LEAST = 0.1  # seconds between two updates: each is a message from the kernel to the browser


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which has imported IPython already."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and getattr(get_ipython(), "kernel", None) is not None


class NotebookBar:
    """A bar with its counts and the time that is left. It stays below the cell, full if the work was completed."""

    def __init__(self, label: str, began: float) -> None:
        self._label, self._began = label, began  # of the clock time.monotonic
        self._drawn = -LEAST  # when
        self._handle: Any = None  # of what the cell displays
        self._state: tuple[int, int | None, str] = (0, None, "")

    def update(self, done: int, total: int | None, detail: str) -> None:
        """Draw the bar anew, unless that was done a moment ago."""
        self._state = done, total, detail
        if time.monotonic() >= self._drawn + LEAST:
            self._draw(*self._state)

    def close(self, completed: bool) -> None:
        """Draw the bar for the last time."""
        done, total, detail = self._state
        self._draw(total if completed and total is not None else done, total, detail)

    def say(self, line: str) -> None:
        """Print a line on stderr; the bar stays where it is."""
        print(line, file=sys.stderr, flush=True)

    def _draw(self, done: int, total: int | None, detail: str) -> None:
        text = f"{self._label}: {parts_done(done, total, detail)}"
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
