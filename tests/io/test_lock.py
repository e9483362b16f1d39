"""A folder's lock is exclusive, can be waited for, and is released when its process is killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from attngeo.errors import AttngeoError
from attngeo.io.files import folder_lock

HOLD = """
import sys
from pathlib import Path
from attngeo.io.files import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(folder: Path) -> subprocess.Popen[str]:
    """Start a process that holds the lock of `folder` until its stdin is closed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    return holder


def test_a_killed_process_releases_the_lock(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    with pytest.raises(AttngeoError, match="another process is using this folder"), folder_lock(tmp_path):
        pass
    holder.kill()
    holder.communicate()
    with folder_lock(tmp_path):
        pass


def test_the_lock_can_be_waited_for(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    held = threading.Event()

    def wait() -> None:
        with folder_lock(tmp_path, wait=True):
            held.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not held.wait(0.2)
    holder.communicate()  # closes its stdin
    assert held.wait(60)
    thread.join()
