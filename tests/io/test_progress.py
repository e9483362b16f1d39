"""`progress=True` draws a bar where someone is watching, and changes nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from attngeo.organization import organize, planted, softmax_invariance

SCRIPT = """
import attngeo, attngeo.io.progress as progress
from attngeo.organization import planted
progress.PATIENCE = 0.0
for _ in range(20):
    attngeo.organize(planted((30, 30, 12), 0)[0], progress={progress})
"""


def shown(progress: bool) -> str:
    """What a terminal sees while a script organises."""
    ours, theirs = os.openpty()
    script = SCRIPT.format(progress=progress)
    with subprocess.Popen([sys.executable, "-c", script], stderr=theirs, env=os.environ | {"TERM": "xterm"}) as run:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 4096):
                seen += part
        except OSError:  # Linux says the terminal is gone in this way
            pass
    os.close(ours)
    assert run.returncode == 0, seen.decode()
    return seen.decode()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals here")
def test_a_bar_is_drawn_when_asked_for() -> None:
    assert "organize" in shown(True) and "%" in shown(True)
    assert shown(False) == ""


def test_nothing_else_changes() -> None:
    array = planted((12, 10, 8), 0)[0]
    assert organize(array, progress=True) == organize(array, progress=False) == organize(array)
    options = {"bootstrap": 10, "heads": [0]}
    assert softmax_invariance(array, progress=True, **options) == softmax_invariance(array, **options)
