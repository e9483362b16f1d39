"""A progress bar on a terminal, drawn by rich."""

from __future__ import annotations

from attngeo.io.progress.amounts import parts_done


class TerminalBar:
    """A bar on stderr that vanishes when the work is done, so that only its results are left on the terminal."""

    def __init__(self, label: str) -> None:
        """Prepare the bar; ImportError where rich, which training does not need, is not installed."""
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress, TextColumn

        columns = (*Progress.get_default_columns(), TextColumn("{task.fields[counts]}", markup=False))
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(escape(label), total=None, counts="")

    def update(self, done: int, total: int | None, detail: str) -> None:
        """Draw the bar, with counts beside it where the percentage does not say enough."""
        counts = parts_done(done, total, detail) if detail else ""
        self._progress.update(self._task, completed=done, total=total, counts=counts)
        self._progress.start()

    def close(self, completed: bool) -> None:
        """Remove the bar."""
        self._progress.stop()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
