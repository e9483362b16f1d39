"""Look at the worker processes of an atlas, on systems with /proc."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

LONGEST = 300.0  # seconds to wait for anything


def workers_of(pid: int) -> list[int]:
    """Return the worker processes that a process has started and that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) if entry.name.isdecimal() else 0
            if parent == pid and b"attngeo.atlas.executors import work" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue  # it has ended meanwhile
    return sorted(found)


def ray_workers_of(pid: int) -> list[int]:
    """Return the processes of Ray that do a task of an atlas, under one process that has started a Ray."""
    parents: dict[int, int] = {}
    busy = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if (entry / "cmdline").read_bytes().startswith(b"ray::run_task"):
                    busy.append(int(entry.name))
        except (OSError, ValueError):
            continue  # it has ended meanwhile

    def is_below(child: int) -> bool:
        while child and child != pid:
            child = parents.get(child, 0)
        return child == pid

    return sorted(filter(is_below, busy))


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Return as soon as a condition holds."""
    end = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)
