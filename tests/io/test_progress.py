"""Progress bars appear on a terminal when work is slow, as lines in a log, and change nothing else."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
import warnings
from typing import Any

import pytest

import attngeo
from attngeo.io.progress import messages_to
from attngeo.organization import organize, planted

terminals_only = pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo-terminals")

ORGANIZE = """
import attngeo, attngeo.io.progress as progress
from attngeo.organization import planted
progress.PATIENCE = 0.0
for _ in range(3):
    attngeo.organize(planted((30, 30, 12), 0)[0], progress={progress})
"""

# `slow` work goes on until the bar is drawn; a bar that needs a minute to appear is a failure.
WORK = """
import time
from attngeo.io import progress
progress.PATIENCE = {patience}
with progress.ProgressBar("<model>") as bar:
    bar.step(1, 3)
    deadline = time.monotonic() + 60
    while {slow} and bar._bar is None and time.monotonic() < deadline:
        time.sleep(0.01)
    bar.step(2, 3)
    {end}
"""
SAY = 'bar.say("a line")'

# A clock that the script sets by hand.
LOG = """
from attngeo.io import progress
now = 0.0
progress.time.monotonic = lambda: now
with progress.ProgressBar("model") as bar:
    bar.step(1, 3)
    now = 60.0
    bar.step(2, 3)
    bar.step(3, 3)
    now = 120.0
    bar.step(4, None)
"""


def printed_on_terminal(script: str) -> str:
    """Run a script whose stderr is a terminal and return what the terminal received."""
    ours, theirs = os.openpty()
    with subprocess.Popen([sys.executable, "-c", script], stderr=theirs, env=os.environ | {"TERM": "xterm"}) as run:
        os.close(theirs)
        received = b""
        try:
            while part := os.read(ours, 65536):
                received += part
        except OSError:  # how Linux reports that the other end of a terminal is closed
            pass
    os.close(ours)
    assert run.returncode == 0, received.decode()
    return received.decode()


@terminals_only
def test_a_bar_is_drawn_on_request() -> None:
    drawn = printed_on_terminal(ORGANIZE.format(progress=True))
    assert "organize" in drawn and "%" in drawn
    assert printed_on_terminal(ORGANIZE.format(progress=False)) == ""


@terminals_only
@pytest.mark.parametrize("slow", [True, False])
def test_a_bar_is_drawn_only_for_slow_work(slow: bool) -> None:
    printed = printed_on_terminal(WORK.format(patience=0.2 if slow else 60.0, slow=slow, end=SAY))
    assert "a line" in printed
    assert ("33%" in printed) == slow


@terminals_only
def test_counts_beside_a_bar() -> None:
    printed = printed_on_terminal(WORK.format(patience=0.0, slow=True, end='bar.step(2, 3, "1 failed")'))
    assert "67%" in printed and "2 of 3, 1 failed" in printed


def shown_in_notebook(script: str) -> list[Any]:
    """Return the outputs of a cell that runs in a real kernel."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(script)])
    nbclient.NotebookClient(notebook, timeout=120, allow_errors=True).execute()
    return notebook.cells[0].outputs


def test_a_notebook_shows_one_bar_that_is_updated_in_place() -> None:
    (shown,) = shown_in_notebook(WORK.format(patience=0.0, slow=True, end="pass"))
    assert shown.output_type == "display_data"
    assert shown.data["text/plain"] == "<model>: 3 of 3"
    assert shown.data["text/html"] == '<progress value="3" max="3"></progress> &lt;model&gt;: 3 of 3'


def test_no_bar_is_drawn_without_a_terminal_nor_ipython_imported() -> None:
    script = WORK.format(patience=0.0, slow=False, end=SAY) + "import sys; assert 'IPython' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "a line\n")


@pytest.mark.parametrize("rank", ["", "1"])
def test_a_log_gets_one_line_per_minute_from_the_main_process(rank: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOG], capture_output=True, text=True, env={**os.environ, "RANK": rank})
    assert done.returncode == 0, done.stderr
    lines = ["attngeo: model: 2 of 3", "attngeo: model: 4"]
    assert done.stderr.splitlines() == (lines if rank != "1" else [])


def test_results_do_not_depend_on_the_bar() -> None:
    array = planted((12, 10, 8), 0)[0]
    assert organize(array, progress=True) == organize(array, progress=False) == organize(array)
    encoder = attngeo.bundled("encoder")
    assert attngeo.score(encoder, progress=True).frame.equals(attngeo.score(encoder).frame)


def test_every_public_function_with_progress_draws_a_bar_when_asked() -> None:
    public = [getattr(attngeo, name) for name in attngeo.__all__]
    takes = [one for one in public if inspect.isfunction(one) and "progress" in inspect.signature(one).parameters]
    assert len(takes) > 8
    assert [one.__name__ for one in takes if not hasattr(one, "__wrapped__")] == []


def test_warnings_and_log_messages_are_said_in_one_line_each() -> None:
    said: list[str] = []
    with messages_to(said.append):
        warnings.warn("layer 3\n has no queries", UserWarning, stacklevel=1)
        logging.getLogger("attngeo").info("a folder\n was made")
    assert said == ["warning: layer 3 has no queries", "a folder was made"]
